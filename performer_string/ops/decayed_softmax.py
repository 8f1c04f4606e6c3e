"""Softmax attention with a decay by torch's flash attention for CPUs, where log lambda is an inner product.

    log lambda(p_i - p_j) = <a_i, b_j>

for columns a and b of the tokens, as of a Gaussian. With these columns beside queries and keys, flash attention gives
the outputs and log-normalisers L' with the decay. A second pass without columns gives the log-normalisers L:

    o_i = exp(L'_i - L_i) sum_j softmax_j(<q_i, k_j> + b_j + <a_i, b_j>) v_j

No N x N numbers are held, and two passes take twice the time of attention without a decay. It is for inference: torch
has no gradient of log-normalisers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.ops.chunked.flash import flash_attention
from performer_string.ops.layout import TokenLayout
from performer_string.utils._compat import FLASH_ATTENTION_CPU, values_unavailable

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias

# Largest bound of a logit's rounding: the terms of <a_i, b_j> grow with the square of the distances, and cancel.
LARGEST_ERROR = 1e-3


def decay_columns(
    q: Tensor, k: Tensor, v: Tensor, locality: RelativeBias, layout: TokenLayout, key_bias: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Return the columns a and b of a decay, [H, N, c] each, or None where N x N weights are to be used.

    These are used for few tokens, in training, on a GPU, under compilers and transforms, for other decays, and where
    the columns would lose digits: for a Gaussian of sigma 1 in images of more than some 90 x 90 patches.

    Args:
        q, k, v: queries and keys in float32 or better, and values, [B, H, N, d].
        locality: the decay.
        layout: positions of the tokens, and prefix.
        key_bias: bias of the keys, or None.
    """
    positions = layout.positions
    assert positions is not None
    if FLASH_ATTENTION_CPU is None or q.device.type != "cpu" or values_unavailable() or positions.is_meta:
        return None
    inputs = [q, k, v, positions, *([] if key_bias is None else [key_bias]), *locality.parameters()]
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return None
    if len(positions) <= locality.max_dense_tokens or q.numel() == 0:
        return None
    columns = locality.log_columns(positions, layout.num_prefix)
    if columns is None:
        return None
    largest = torch.stack([x.abs().amax(dim=1) for x in columns]).prod(0).sum(-1).max()  # of the sums of the terms
    return columns if torch.finfo(q.dtype).eps * float(largest) <= LARGEST_ERROR else None


def attend_with_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: tuple[Tensor, Tensor],
    normalised: bool,
    key_mask: Tensor | None,
    key_bias: Tensor | None,
) -> Tensor:
    """Return the outputs of softmax attention with a decay.

    Args:
        q, k, v: queries, which hold the scale of the logits, keys and values, [B, H, N, d].
        columns: columns a and b of the decay from `decay_columns`, [H, N, c].
        normalised: whether the denominator has the decay too.
        key_mask: mask of the keys, [B, N], or None.
        key_bias: bias of the keys, [B, H, N], or None.

    Returns:
        Outputs, [B, H, N, e]. Those of a sample without keys are zero.
    """
    bias = mask_bias(key_mask, key_bias, q)
    bias = None if bias is None else bias[:, :, None].expand(-1, q.shape[1], -1, -1)
    a, b = (x.to(q.dtype).expand(q.shape[0], -1, -1, -1) for x in columns)
    out, log = flash_with_widths(torch.cat([q, a], dim=-1), torch.cat([k, b], dim=-1), v, bias)
    if not normalised:
        log_without = flash_with_widths(q, k, v[..., : q.shape[-1]], bias)[1]
        out = out * (log - log_without).exp()[..., None]
    return out if key_mask is None else out.masked_fill(~key_mask.any(-1)[:, None, None, None], 0.0)


def flash_with_widths(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what `flash_attention` does of values of any width, [B, H, N, e]; its kernel takes one width for all."""
    width = v.shape[-1]
    out, log = flash_attention(*pad_to_one_width(q, k, v), bias)
    return out[..., :width], log


def pad_to_one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values with zeros up to the widest of them, which change no product."""
    widest = max(x.shape[-1] for x in (q, k, v))
    q, k, v = (F.pad(x, (0, widest - x.shape[-1])) if x.shape[-1] < widest else x for x in (q, k, v))
    return q, k, v


def mask_bias(key_mask: Tensor | None, key_bias: Tensor | None, like: Tensor) -> Tensor | None:
    """Return the sum of a bias of the keys and -inf for masked ones, [B, H or 1, N], in the type of `like`, or None."""
    bias = None if key_bias is None else key_bias.to(like.dtype)
    if key_mask is None:
        return bias
    bias = like.new_zeros(len(key_mask), 1, key_mask.shape[-1]) if bias is None else bias
    return bias.masked_fill(~key_mask[:, None], -torch.inf)
