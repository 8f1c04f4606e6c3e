"""Softmax and linear attention under a rotation of queries and keys.

Shapes: queries, keys and values [B, H, N, d]; a key mask [B, N] of booleans, True where a key takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from performer_string.checks import (
    check_features,
    check_heads,
    check_key_bias,
    check_locality,
    check_mask,
    check_positions,
    check_rotation,
)
from performer_string.choices import check_positive
from performer_string.features import FeatureMap
from performer_string.kernels import fused_attention
from performer_string.key_bias import key_logits, key_weights, with_bias_columns
from performer_string.locality.focusing import divide
from performer_string.locality.offsets import OffsetKernel
from performer_string.modes import plain, transformed
from performer_string.precision import full_precision
from performer_string.rotation import Rotation


def rotate_pair(q: Tensor, k: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    return (q, k) if rotation is None else (rotation.rotate(q), rotation.rotate(k))


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotation: Rotation | None = None,
    locality: OffsetKernel | None = None,
    positions: Tensor | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """o_i = sum_j softmax_j(scale <R_i q_i, R_j k_j>) v_j, exact, through torch's fused kernels. [B, H, N, d]

    Args:
        q, k, v: each token attends to all others; there is no causal form.
        rotation: R, from an encoding; None for the identity, or where queries and keys at positions of their own (cross
            attention) have been turned already, by `rotate` of a rotation each.
        locality: lambda, which attenuates the values by distance after the softmax, or, if normalised, is a bias of the
            logits; it needs the weights in full.
        positions: [N, C], for the locality.
        num_prefix: leading tokens without a position, for the locality.
        key_mask: [B, N], True where a key takes part; a row with none is zero.
        key_bias: b, [B, H, N], finite, added to the logits of each key.
        scale: of the logits, d^-1/2 unless given.
    """
    check_heads(q, k, v)
    check_rotation(rotation, q, k)
    check_mask("key", key_mask, k.shape[0], k.shape[2])
    check_key_bias(key_bias, k)
    q, k = rotate_pair(q, k, rotation)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    check_positive("the scale of the logits", scale)
    if key_bias is not None:
        key_bias = key_logits(key_bias, key_mask)
    if locality is not None:
        check_locality(locality, q)
        placed = check_positions(positions, q, k, num_prefix), num_prefix
        return focused_softmax(q, k, v, scale, locality, placed, key_mask, key_bias)
    width, out_dtype = v.shape[-1], v.dtype
    mixed = not q.dtype == k.dtype == v.dtype  # which torch's kernels do not take
    if mixed:
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if key_bias is not None:
        q, k, v = with_bias_columns(q, k, v, key_bias, scale)
    mask = None if key_mask is None else key_mask[:, None, None, :]
    with sdpa_kernel(SDPBackend.MATH) if transformed() else nullcontext():  # fused ones have no forward differentiation
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)[..., :width]
    if mask is not None:
        out = out.masked_fill(~mask.any(-1, keepdim=True), 0.0)  # kernels differ on a row without keys: 0 or NaN
    return out.to(out_dtype) if mixed else out


def focused_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    locality: OffsetKernel,
    placed: tuple[Tensor, int],
    key_mask: Tensor | None,
    key_bias: Tensor | None,
) -> Tensor:
    """Softmax attention with a locality: all weights [B, H, Nq, Nk], in float32 or better.

    Args:
        placed: positions, and how many leading tokens have none.
        key_bias: from `key_logits`.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q.to(dtype) * scale) @ k.to(dtype).mT
        if locality.normalised:
            logits = logits + locality.log_matrix(*placed).to(dtype)
        if key_bias is not None:
            logits = logits + key_bias[:, :, None]
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask[:, None, None], -torch.inf)
        silent = None
        if key_mask is not None or locality.normalised:
            silent = (logits == -torch.inf).all(-1, keepdim=True)  # no key, or none that the kernel reaches: zero
            logits = logits.masked_fill(silent, 0.0)
        weights = logits.softmax(-1)
        if not locality.normalised:
            weights = weights * locality.matrix(*placed).to(dtype)
        out = weights @ v.to(dtype)
        return (out if silent is None else out.masked_fill(silent, 0.0)).to(v.dtype)


def weighed(
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: FeatureMap,
    locality: OffsetKernel | None,
    key_bias: Tensor,
    key_mask: Tensor | None,
) -> Tensor:
    """sum_j A_ij w_j v_j / sum_j A_ij w_j with w_j = exp(b_j): linear attention with values w_j v_j and one more column
    of them, w_j, for the denominator; apart from it under a locality, which that does not see.

    Args:
        attend: linear attention without a bias.
    """
    # Where the denominator sees a locality, all keys in reach of a query may be light: not too light to be seen.
    near = locality is not None and locality.normalised
    least = 0.57 * math.log(torch.finfo(full_precision(v).dtype).tiny) if near else -math.inf
    weights, out_dtype = key_weights(key_bias, key_mask, least=least), v.dtype
    if v.dtype == torch.float16:  # has no room for small weights
        v = v.float()
    if locality is None or near:
        both = attend(q, k, torch.cat([v * weights, weights], dim=-1).to(v.dtype), phi, locality=locality)
        return divide(*both.split((v.shape[-1], 1), dim=-1)).to(out_dtype)
    numerator = attend(q, k, (v * weights).to(v.dtype), phi, locality=locality)
    return divide(numerator, attend(q, k, weights.to(v.dtype), phi)).to(out_dtype)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: FeatureMap,
    *,
    rotation: Rotation | None = None,
    locality: OffsetKernel | None = None,
    positions: Tensor | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """o_i = phi(R_i q_i)^T sum_j phi(R_j k_j) v_j^T / phi(R_i q_i)^T sum_j phi(R_j k_j), in time linear in N.

    Features, sums and denominator are in float32 or better, whatever the input and autocast; the output has the type
    of v. A query that no key answers to (every key masked, or every product of features zero) gives zero.

    Args:
        q, k, v: each token attends to all others; there is no causal form.
        phi: the feature map; the logit scale is its own.
        rotation: as in `softmax_attention`.
        locality: lambda, which attenuates the values by distance and, if it is normalised, the denominator too.
        positions: [N, C], for the locality; decays take time linear in N where these are a regular grid.
        num_prefix: leading tokens without a position, for the locality.
        key_mask: [B, N], True where a key takes part; the others have to be finite too.
        key_bias: b, [B, H, N], finite: each product of features times exp(b_j), as if b_j were added to a logit. With a
            normalised locality, keys more than 50 (in float64 400) below the largest b of their head are alike.

    Returns:
        [B, H, N, d]. Source: arXiv:2009.14794 (FAVOR+), arXiv:2502.02562 section 3.2 (rotations before the features).
    """
    check_heads(q, k, v)
    check_features(phi, q)
    check_rotation(rotation, q, k)
    check_mask("key", key_mask, k.shape[0], k.shape[2])
    check_key_bias(key_bias, k)
    if locality is not None:
        check_locality(locality, q)
    if not k.shape[-2] or not v.shape[0]:
        # A gradient of zero for all that has one otherwise: as a process needs that has no images, beside others.
        involved = [v, *rotate_pair(q, k, rotation), *phi.parameters()]
        involved += [] if key_bias is None else [key_bias]
        involved += [] if locality is None else locality.parameters()
        nothing = sum((x.flatten()[:0].sum().to(v.dtype) for x in involved), v.new_zeros(()))
        return v.new_zeros(*q.shape[:-1], v.shape[-1]) + nothing
    if key_bias is not None and phi.degree is not None:
        k = k * key_weights(key_bias, key_mask, phi.degree).to(k.dtype)  # a key's norm is its weight
        key_bias = None
    form = phi.form() if locality is None and not plain() else None
    if form is not None:
        planes = None if rotation is None else rotation.planar()
        if planes is None:
            q, k = rotate_pair(q, k, rotation)
        bias = None if key_bias is None else key_logits(key_bias, key_mask)
        with torch.autocast(q.device.type, enabled=False):
            return fused_attention(q, k, v, form, planes, key_mask, bias)
    if key_bias is not None:
        attend = partial(
            linear_attention, rotation=rotation, positions=positions, num_prefix=num_prefix, key_mask=key_mask
        )
        return weighed(attend, q, k, v, phi, locality, key_bias, key_mask)
    q, k = rotate_pair(q, k, rotation)
    with torch.autocast(q.device.type, enabled=False):
        if locality is not None:
            q, k = (x.to(torch.promote_types(q.dtype, k.dtype)) for x in (q, k))
            positions = check_positions(positions, q, k, num_prefix)
            return locality.attend(phi, q, k, v, positions, num_prefix, key_mask).to(v.dtype)
        fq, fk = phi.pair(q, k, key_mask)  # [B, H, N, m]
        numerator = fq @ (fk.mT @ v.to(fk.dtype))  # [B, H, N, m] [B, H, m, d]
        return divide(numerator, fq @ fk.sum(dim=-2)[..., None]).to(v.dtype)
