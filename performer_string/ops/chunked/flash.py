"""The two softmax attentions of exponential features by torch's flash attention for CPUs.

In the notation of `ExponentialSums`, features attend to keys, with outputs U_f and log-normalisers L_f. Queries then
attend to features, with U_f as values. Logits and weights stay in the cache of a core.
"""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.ops.chunked.exponential import ExponentialSums
from performer_string.ops.chunked.sums import KeyChunk
from performer_string.utils._compat import FLASH_ATTENTION_CPU

# Queries that one thread of torch's kernel takes at a time, where there are 192 or more.
ROWS_PER_THREAD = 64


def can_flash(q: Tensor, v: Tensor, weight: Tensor) -> bool:
    """Return whether torch's kernel takes these shapes and keeps its threads busy with the sums over the keys.

    Args:
        q, v: queries and values, [H, B, N, d] and [H, B, N, d_v].
        weight: weight W of the feature map, [H, m, d].
    """
    tasks = q.shape[0] * q.shape[1] * -(-weight.shape[1] // ROWS_PER_THREAD)  # the sums have m rows a head and sample
    busy = tasks >= torch.get_num_threads()
    return FLASH_ATTENTION_CPU is not None and q.device.type == "cpu" and q.shape[-1] == v.shape[-1] and busy


def flash_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return sum_j softmax_j(q_i k_j + b_j) v_j and log sum_j exp(q_i k_j + b_j).

    Args:
        q, k, v: queries [H, B, M, d], keys and values [H, B, N, d].
        bias: bias b of the keys, [H, B, 1, N], or None; not -inf for all of them.

    Returns:
        Outputs, [H, B, M, d], and log-normalisers, [H, B, M].
    """
    if q.stride(-1) != 1 or 1 in q.shape:
        # torch gives the output the strides of q. Along an expanded axis its kernel would write to wrong addresses.
        q = q.contiguous()
    k = k if k.stride(-1) == 1 else k.contiguous()
    v = v if v.stride(-1) == 1 else v.contiguous()
    mask = None
    if bias is not None:
        bias = bias if bias.stride(-1) == 1 else bias.contiguous()  # or torch would copy all M x N numbers
        mask = bias.expand(*bias.shape[:2], q.shape[2], bias.shape[-1])
    out, log = FLASH_ATTENTION_CPU(q, k, v, attn_mask=mask, scale=1.0)
    return out, log


class FlashSums(ExponentialSums):
    """Forward pass of `ExponentialSums` by torch's flash attention, with values in the type of the features."""

    def begin(self, keys: Tensor, width: int, masked: Tensor | None) -> None:
        super().begin(keys, width, masked)
        self.feature_queries = self.weight[:, None].expand(-1, keys.shape[1], -1, -1)  # [H, B, m, d]

    def add_keys(self, keys: KeyChunk) -> None:
        values = keys.v.to(self.weight.dtype)
        means, log = flash_attention(self.feature_queries, keys.x, values, self.key_offsets(keys).mT)
        if not self.first:
            total = torch.logaddexp(self.log_total, log)
            means = means * (log - total).exp_()[..., None]
            means.addcmul_(self.means, (self.log_total - total).exp_()[..., None])
            log = total
        self.means, self.log_total, self.first = means, log, False

    def close(self) -> tuple[Tensor, ...]:
        return self.without_masked(self.means, self.log_total)

    def outputs(self, x: Tensor) -> Tensor:
        return flash_attention(x, self.feature_queries, self.means, self.log_total[:, :, None])[0]
