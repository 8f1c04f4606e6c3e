"""The two softmaxes of exponential features by torch's own flash attention, on CPUs.

Keys: the features are the queries of an attention to the keys, whose outputs are U_f and whose normalisers are e_f.
Queries: they attend to the features, with U_f as values. Logits and weights never leave the cache of a core.
"""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.ops.chunk_sums import ExponentialSums, KeyChunk
from performer_string.utils._compat import FLASH_ATTENTION_CPU

ROWS_PER_THREAD = 64  # queries that one thread of torch's kernel takes at a time, where there are 192 or more


def can_flash(q: Tensor, v: Tensor, weight: Tensor) -> bool:
    """Return whether torch's kernel takes these shapes and keeps its threads busy with the sums over the keys.

    Args:
        q, v: [H, B, N, d], [H, B, N, d_v].
        weight: [H, m, d].
    """
    tasks = q.shape[0] * q.shape[1] * -(-weight.shape[1] // ROWS_PER_THREAD)  # the sums have m rows a head and sample
    busy = tasks >= torch.get_num_threads()
    return FLASH_ATTENTION_CPU is not None and q.device.type == "cpu" and q.shape[-1] == v.shape[-1] and busy


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax_j(q_i k_j + bias_j) v_j and the logarithms of its normalisers.

    Args:
        q, k, v: [H, B, M, d], [H, B, N, d], [H, B, N, d].
        bias: finite, [H, B, 1, N].

    Returns:
        [H, B, M, d], [H, B, M].
    """
    if q.stride(-1) != 1 or 1 in q.shape:
        # torch lays the output out like q. Where an axis of size 1 was expanded, its kernel writes into other places.
        q = q.contiguous()
    k = k if k.stride(-1) == 1 else k.contiguous()
    v = v if v.stride(-1) == 1 else v.contiguous()
    mask = bias.expand(*bias.shape[:2], q.shape[2], bias.shape[-1])
    out, log = FLASH_ATTENTION_CPU(q, k, v, attn_mask=mask, scale=1.0)
    return out, log


class FlashSums(ExponentialSums):
    """The forward pass of `ExponentialSums`, all of it in the type of the features."""

    def begin(self, keys: Tensor, width: int, masked: Tensor | None) -> None:
        super().begin(keys, width, masked)
        self.landmark_weights = self.weight[:, None].expand(-1, keys.shape[1], -1, -1)  # [H, B, m, d]

    def add_keys(self, keys: KeyChunk) -> None:
        values = keys.v.to(self.weight.dtype)
        landmarks, log = attend(self.landmark_weights, keys.x, values, self.key_offsets(keys).mT)
        if not self.first:
            total = torch.logaddexp(self.log, log)
            landmarks = landmarks * (log - total).exp_()[..., None]
            landmarks.addcmul_(self.landmarks, (self.log - total).exp_()[..., None])
            log = total
        self.landmarks, self.log, self.first = landmarks, log, False

    def close(self) -> tuple[Tensor, ...]:
        return self.without_masked(self.landmarks, self.log)

    def queries(self, x: Tensor) -> Tensor:
        return attend(x, self.landmark_weights, self.landmarks, self.log[:, :, None])[0]
