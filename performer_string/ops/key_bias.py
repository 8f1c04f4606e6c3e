"""Bias b_j of each key, [B, H, N]: added to logits, as a weight exp(b_j), or as columns of queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.utils.dtype import full_precision

NEGLIGIBLE = -1e4  # a bias in place of -inf: its exponential is zero next to that of any other


def relative_bias(key_bias: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return b_j - max_i b_i over the keys i that take part, in float32 or better.

    Args:
        key_bias: bias b of the keys, [B, H, N].
        key_mask: mask of the keys, [B, N], True for keys to attend to; None for all.

    Returns:
        Biases, [B, H, N]. Masked keys have the lowest number of the type.
    """
    bias = full_precision(key_bias)
    least = torch.finfo(bias.dtype).min
    if key_mask is not None:
        bias = bias.masked_fill(~key_mask[:, None], least)
    largest = bias.detach().amax(dim=-1, keepdim=True) if bias.shape[-1] else bias.new_zeros(*bias.shape[:-1], 1)
    return bias - largest.clamp(min=least)  # the clamp avoids NaN where every bias is -inf


def key_logits(key_bias: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return `relative_bias` of at least `NEGLIGIBLE`, which is finite, for kernels that add it to logits."""
    return relative_bias(key_bias, key_mask).clamp(min=NEGLIGIBLE)


def key_weights(key_bias: Tensor, key_mask: Tensor | None, degree: int = 1, least: float = -math.inf) -> Tensor:
    """Return exp((b_j - max_i b_i) / degree), the largest weight of each head being 1.

    Args:
        key_bias, key_mask: see `relative_bias`.
        degree: degree of homogeneous features, whose keys are scaled by the weight.
        least: lower bound of the exponent.

    Returns:
        Weights, [B, H, N, 1]. Masked keys have zero, also where all are masked.
    """
    weights = (relative_bias(key_bias, key_mask) / degree).clamp(min=least).exp()
    return (weights if key_mask is None else weights.masked_fill(~key_mask[:, None], 0.0))[..., None]


def with_bias_columns(q: Tensor, k: Tensor, v: Tensor, key_bias: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v with two more columns, so that scale q_i^T k_j contains b_j.

    A mask with a gradient would take N x N numbers. The two columns hold the bias rounded to bf16 and the rest, which
    is exact to 2^-17 in any type. The columns of v are zero.

    On a GPU zeros fill the width up to a multiple of 8. Otherwise float32, and 16 bits with a mask, would go to a
    kernel that holds N x N weights.

    Args:
        q, k, v: queries, keys and values, [B, H, N, d].
        key_bias: bias b of the keys from `key_logits`, [B, H, N].
        scale: scale of the logits.

    Returns:
        Queries, keys and values, [B, H, N, d + 2], or wider on a GPU.
    """
    width = q.shape[-1] + 2
    padding = -width % 8 if q.device.type == "cuda" else 0
    factor = 2.0 ** min(15, round(-math.log2(scale)))  # of the queries' columns; powers of two are exact, also in fp16
    bias = key_bias / (scale * factor)
    high = bias.detach().bfloat16().to(bias.dtype)
    columns = torch.stack([high, bias - high], dim=-1).to(k.dtype)  # [B, H, N, 2]
    q, k = torch.cat([q, q.new_full((*q.shape[:-1], 2), factor)], dim=-1), torch.cat([k, columns], dim=-1)
    return F.pad(q, (0, padding)), F.pad(k, (0, padding)), F.pad(v, (0, 2 + padding))
