"""Softmax and linear attention under a rotation of queries and keys.

Shapes: queries, keys and values [B, H, N, d]; a key mask [B, N] of booleans, True where a key takes part.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.features import FeatureForm
from performer_string.kernels import fused_attention
from performer_string.rotation import Rotation


class Features(Protocol):
    """What linear attention asks of a feature map; `FeatureMap` says what it means."""

    @property
    def degree(self) -> int | None: ...

    def pair(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

    def form(self) -> FeatureForm | None: ...


def check_key_mask(key_mask: Tensor | None, k: Tensor) -> None:
    if key_mask is None:
        return
    if key_mask.dtype != torch.bool or key_mask.shape != (k.shape[0], k.shape[-2]):
        raise ValueError(
            f"key_mask has to be boolean and of shape [B, N] = [{k.shape[0]}, {k.shape[-2]}], True where a key takes "
            f"part, not {key_mask.dtype} {list(key_mask.shape)}."
        )


def check_key_bias(key_bias: Tensor | None, k: Tensor) -> None:
    if key_bias is not None and key_bias.shape != k.shape[:3]:
        raise ValueError(f"key_bias has to be [B, H, N] = {list(k.shape[:3])}, not {list(key_bias.shape)}.")


def key_weights(key_bias: Tensor, key_mask: Tensor | None, degree: int = 1) -> Tensor:
    """exp(b_j / degree) up to a factor for each head, which makes the largest 1: [B, H, N] -> [B, H, N, 1]."""
    bias = key_bias.to(torch.promote_types(key_bias.dtype, torch.float32))
    if key_mask is not None:  # masked keys have no say, however large
        bias = bias.masked_fill(~key_mask[:, None], torch.finfo(bias.dtype).min)
    return ((bias - bias.detach().amax(dim=-1, keepdim=True)) / degree).exp()[..., None]


class Decay(Protocol):
    """What attention asks of a locality or a relative mask; `OffsetKernel` says what it means."""

    def matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor: ...

    def numerator(self, fq: Tensor, fk: Tensor, v: Tensor, positions: Tensor, num_prefix: int = 0) -> Tensor: ...


def check_positions(positions: Tensor | None, tokens: int) -> Tensor:
    """The positions, which a decay needs."""
    if positions is None or len(positions) != tokens:
        given = "none" if positions is None else f"{len(positions)}"
        raise ValueError(f"a locality or mask needs the positions of all {tokens} tokens, [N, C]; {given} given.")
    return positions


def rotate_pair(q: Tensor, k: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    return (q, k) if rotation is None else (rotation.rotate(q), rotation.rotate(k))


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotation: Rotation | None = None,
    locality: Decay | None = None,
    positions: Tensor | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """o_i = sum_j softmax_j(scale <R_i q_i, R_j k_j>) v_j, exact, through torch's fused kernels. [B, H, N, d]

    Args:
        rotation: R, from an encoding; None for the identity.
        locality: lambda, which attenuates the values by distance after the softmax; it needs the weights in full.
        positions: [N, C], for the locality.
        num_prefix: leading tokens without a position, for the locality.
        key_mask: [B, N], True where a key takes part; a row with none is zero.
        key_bias: b, [B, H, N], added to the logits of each key.
        scale: of the logits, d^-1/2 unless given.
    """
    check_key_mask(key_mask, k)
    check_key_bias(key_bias, k)
    q, k = rotate_pair(q, k, rotation)
    if locality is not None:
        decay = locality.matrix(check_positions(positions, k.shape[-2]), num_prefix)
        dtype = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            logits = q.to(dtype) @ k.to(dtype).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
            if key_bias is not None:
                logits = logits + key_bias[:, :, None]
            if key_mask is not None:
                logits = logits.masked_fill(~key_mask[:, None, None, :], -torch.inf)
            weights = logits.softmax(-1).nan_to_num(0.0) * decay  # [B, H, N, N]
            return (weights @ v.to(dtype)).to(v.dtype)
    if key_mask is None:
        bias = None if key_bias is None else key_bias[:, :, None].to(q.dtype)  # [B, H, 1, N]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    mask = key_mask[:, None, None, :]
    bias = mask if key_bias is None else key_bias[:, :, None].to(q.dtype).masked_fill(~mask, -torch.inf)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    return out.masked_fill(~mask.any(-1, keepdim=True), 0.0)  # kernels differ on a row without keys: 0 or NaN


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: Features,
    *,
    rotation: Rotation | None = None,
    locality: Decay | None = None,
    relative_mask: Decay | None = None,
    positions: Tensor | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """o_i = phi(R_i q_i)^T sum_j phi(R_j k_j) v_j^T / phi(R_i q_i)^T sum_j phi(R_j k_j), in time linear in N.

    Features, sums and denominator are in float32 or better, whatever the input and autocast; the output has the type
    of v. A query that no key answers to (every key masked, or every product of features zero) gives zero.

    Args:
        phi: the feature map; the logit scale is its own.
        rotation: R, from an encoding; None for the identity.
        locality: lambda, which attenuates the values by distance and not the denominator.
        relative_mask: c, which multiplies every product of features, in the denominator too; not with a locality.
        positions: [N, C], for the two; their cost is linear in N (N log N) where these are a regular grid.
        num_prefix: leading tokens without a position, for the two.
        key_mask: [B, N], True where a key takes part.
        key_bias: b, [B, H, N]: each product of features times exp(b_j), as if b_j were added to a logit.

    Returns:
        [B, H, N, d]. Source: arXiv:2009.14794 (FAVOR+), arXiv:2502.02562 section 4 (rotations before the features).
    """
    check_key_mask(key_mask, k)
    check_key_bias(key_bias, k)
    if locality is not None and relative_mask is not None:
        raise ValueError("linear_attention takes a locality or a relative_mask, not both.")
    decay = relative_mask if locality is None else locality
    weights = None if key_bias is None else key_weights(key_bias, key_mask, phi.degree or 1)  # [B, H, N, 1]
    if weights is not None and phi.degree is not None:
        k, weights = k * weights.to(k.dtype), None  # a key's norm is its weight
    form = phi.form() if decay is None else None
    if form is not None:
        planes = None if rotation is None else rotation.planar()
        if planes is None:
            q, k = rotate_pair(q, k, rotation)
        with torch.autocast(q.device.type, enabled=False):
            if weights is None:
                return fused_attention(q, k, v, form, planes, key_mask)
            # sum_j A_ij w_j v_j / sum_j A_ij w_j, with the denominator as one more column of the values
            both = fused_attention(q, k, torch.cat([v * weights, weights], dim=-1).to(v.dtype), form, planes, key_mask)
            out, total = both.split((v.shape[-1], 1), dim=-1)
            return out / torch.where(total > 0, total, 1.0)
    q, k = rotate_pair(q, k, rotation)
    with torch.autocast(q.device.type, enabled=False):
        fq, fk = phi.pair(q, k, key_mask)  # [B, H, N, m]
        fk = fk if weights is None else fk * weights
        values = v.to(fk.dtype)
        if relative_mask is not None:  # the denominator is one more column of the values
            values = torch.cat([values, values.new_ones(*values.shape[:-1], 1)], dim=-1)
        if decay is None:
            numerator = fq @ (fk.mT @ values)  # [B, H, N, m] [B, H, m, d]
        else:
            numerator = decay.numerator(fq, fk, values, check_positions(positions, k.shape[-2]), num_prefix)
        if relative_mask is not None:
            numerator, denominator = numerator.split((v.shape[-1], 1), dim=-1)
        else:
            denominator = fq @ fk.sum(dim=-2)[..., None]  # [B, H, N, 1]
        out = numerator / torch.where(denominator > 0, denominator, 1.0)
    return out.to(v.dtype)
