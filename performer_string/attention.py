"""Softmax and linear attention under a rotation of queries and keys.

Shapes: queries, keys and values [B, H, N, d]; a key mask [B, N] of booleans, True where a key takes part.
"""

from __future__ import annotations

import math
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
from performer_string.locality.focusing import divide
from performer_string.locality.offsets import OffsetKernel
from performer_string.modes import plain, transformed
from performer_string.precision import full_precision
from performer_string.rotation import Rotation

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
        dtype = torch.promote_types(q.dtype, torch.float32)
        placed = check_positions(positions, q, k, num_prefix), num_prefix
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
        # sum_j A_ij w_j v_j / sum_j A_ij w_j, the denominator as one more column of the values; but under a locality
        # that it does not see.
        # Where the denominator sees a locality, all keys in reach of a query may be light: not too light to be seen.
        near = locality is not None and locality.normalised
        least = 0.57 * math.log(torch.finfo(full_precision(v).dtype).tiny) if near else -math.inf
        weights, out_dtype = key_weights(key_bias, key_mask, least=least), v.dtype
        if v.dtype == torch.float16:  # has no room for small weights
            v = v.float()
        given = partial(
            linear_attention, rotation=rotation, positions=positions, num_prefix=num_prefix, key_mask=key_mask
        )
        if locality is None or near:
            both = given(q, k, torch.cat([v * weights, weights], dim=-1).to(v.dtype), phi, locality=locality)
            return divide(*both.split((v.shape[-1], 1), dim=-1)).to(out_dtype)
        numerator = given(q, k, (v * weights).to(v.dtype), phi, locality=locality)
        return divide(numerator, given(q, k, weights.to(v.dtype), phi)).to(out_dtype)
    q, k = rotate_pair(q, k, rotation)
    with torch.autocast(q.device.type, enabled=False):
        if locality is not None:
            q, k = (x.to(torch.promote_types(q.dtype, k.dtype)) for x in (q, k))
            positions = check_positions(positions, q, k, num_prefix)
            return locality.attend(phi, q, k, v, positions, num_prefix, key_mask).to(v.dtype)
        fq, fk = phi.pair(q, k, key_mask)  # [B, H, N, m]
        numerator = fq @ (fk.mT @ v.to(fk.dtype))  # [B, H, N, m] [B, H, m, d]
        return divide(numerator, fq @ fk.sum(dim=-2)[..., None]).to(v.dtype)
