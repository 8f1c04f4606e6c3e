"""Attention with the polynomial kernels of degree 2, as sums weighted by squared inner products.

(s q^T k)^2                     = s^2 (q^T k)^2
1 + s q^T k + (s q^T k)^2 / 2   = ((s q^T k + 1)^2 + 1) / 2 = ((a^T b)^2 + 1) / 2,   a = [s^1/2 q, 1], b = [s^1/2 k, 1]
"""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.ops.forms import PolynomialKernel
from performer_string.ops.key_bias import key_weights
from performer_string.ops.polynomial.squares import squared_sums
from performer_string.utils.dtype import full_precision, in_one_type
from performer_string.utils.numerics import least_norm, safe_denominator


def summed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: PolynomialKernel,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Compute attention with a polynomial kernel by torch operations, for any device and any derivative.

    Queries are divided by their norms, and all keys of a head by the largest of theirs, so that squares stay in range.
    These factors cancel, and have no gradient.

    Args:
        q, k: rotated queries and keys, [B, H, N, d].
        v: values, [B, H, N, e].
        kernel: polynomial kernel of rotated queries and keys.
        key_mask: mask of the keys, [B, N], True for keys to attend to.
        key_bias: bias b of the keys, [B, H, N]. The kernel of key j is multiplied by exp(b_j).

    Returns:
        Outputs, [B, H, N, e] in the type of v.
    """
    a, b = in_one_type(full_precision(q), full_precision(k))
    dtype, width = a.dtype, v.shape[-1]
    if kernel.lower:
        a, b = (torch.cat([x * kernel.scale**0.5, x.new_ones(*x.shape[:-1], 1)], dim=-1) for x in (a, b))
    weights = None  # weights of the keys, [B, H, N, 1]
    if key_bias is not None:
        roots = key_weights(key_bias, key_mask, degree=2).to(dtype)  # a root of a weight of zero has no gradient
        b, weights = b * roots, roots.square()
    elif key_mask is not None:
        weights = key_mask[:, None, :, None].to(dtype)
    if key_mask is not None:
        b = b.masked_fill(~key_mask[:, None, :, None], 0.0)
    a_norm = a.detach().norm(dim=-1, keepdim=True).clamp_min(least_norm(dtype))  # [B, H, Nq, 1]
    b_norm = b.detach().norm(dim=-1, keepdim=True).amax(-2, keepdim=True).clamp_min(least_norm(dtype))  # [B, H, 1, 1]
    u = torch.cat([v.to(dtype), v.new_ones(*v.shape[:-1], 1, dtype=dtype)], dim=-1)  # for the denominator too
    groups = ((a / a_norm).flatten(0, 1), (b / b_norm).flatten(0, 1), u.flatten(0, 1))  # [B H, N, .]
    sums = squared_sums(*groups).unflatten(0, a.shape[:2])  # [B, H, Nq, d + 1]
    if kernel.lower:  # the constant, divided as the squares are
        total = (u if weights is None else u * weights).sum(-2, keepdim=True)  # [B, H, 1, d + 1]
        sums = sums + total * (a_norm * b_norm).square().reciprocal()
    return (sums[..., :width] / safe_denominator(sums[..., width:])).to(v.dtype)
