"""A bias b_j of each key, [B, H, N]: in the logits, as a weight exp(b_j), or as columns of queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.utils.dtype import full_precision

NEVER = -1e4  # a bias in place of -inf: exp of it is zero beside any other


def centred(key_bias: Tensor, key_mask: Tensor | None) -> Tensor:
    """b less its largest, [B, H, N], in float32 or better; masked keys have no say, however large."""
    bias = full_precision(key_bias)
    least = torch.finfo(bias.dtype).min
    if key_mask is not None:
        bias = bias.masked_fill(~key_mask[:, None], least)
    largest = bias.detach().amax(dim=-1, keepdim=True) if bias.shape[-1] else bias.new_zeros(*bias.shape[:-1], 1)
    return bias - largest.clamp(min=least)  # all of them -inf: not NaN


def key_logits(key_bias: Tensor, key_mask: Tensor | None) -> Tensor:
    """b less its largest, [B, H, N], and finite, for kernels that add it to logits."""
    return centred(key_bias, key_mask).clamp(min=NEVER)


def key_weights(key_bias: Tensor, key_mask: Tensor | None, degree: int = 1, least: float = -math.inf) -> Tensor:
    """exp(b_j / degree) up to a factor for each head, which makes the largest 1, and at least exp(`least`):
    [B, H, N] -> [B, H, N, 1]."""
    return (centred(key_bias, key_mask) / degree).clamp(min=least).exp()[..., None]


def with_bias_columns(q: Tensor, k: Tensor, v: Tensor, key_bias: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with two columns more, so that scale q^T k has the bias [B, H, N] of each key in it.

    As a mask it would be N x N where it needs a gradient. The two columns are the bias rounded to bf16 and the rest, so
    that it is exact to 2^-17 in any type; those of v are zero. On a GPU zeros fill up the width to a multiple of 8,
    without which float32, or 16 bits with a mask, would be left to a kernel that holds N x N weights.
    """
    width = q.shape[-1] + 2
    empty = -width % 8 if q.device.type == "cuda" else 0
    factor = 2.0 ** min(15, round(-math.log2(scale)))  # of the queries' columns: a power of two is exact, also in fp16
    bias = key_bias / (scale * factor)
    high = bias.detach().bfloat16().to(bias.dtype)
    columns = torch.stack([high, bias - high], dim=-1).to(k.dtype)  # [B, H, N, 2]
    q, k = torch.cat([q, q.new_full((*q.shape[:-1], 2), factor)], dim=-1), torch.cat([k, columns], dim=-1)
    return F.pad(q, (0, empty)), F.pad(k, (0, empty)), F.pad(v, (0, 2 + empty))
