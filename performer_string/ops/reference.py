"""Definitions of features and attention, dense and in full, which every faster form is tested against.

They share no code with the faster forms, take any floating type, and hold N x N or N x m x d numbers. Definitions of
rotations and decays, which depend on positions, are in `reference_positions`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.ops.reference_positions import rotate as rotate


def positive_features(x: Tensor, projection: Tensor, scale: float) -> Tensor:
    """Return phi_f(x) = m^-1/2 exp(sqrt(scale) w_f x - scale |x|^2 / 2).

    Args:
        x: queries or keys, [B, H, N, d].
        projection: rows w of the projection, [H, m, d].
        scale: scale of the logits.

    Returns:
        Features, [B, H, N, m].
    """
    dots = torch.einsum("bhnd,hmd->bhnm", x, projection)
    squares = torch.einsum("bhnd,bhnd->bhn", x, x).unsqueeze(-1)
    return torch.exp(scale**0.5 * dots - 0.5 * scale * squares) / projection.shape[1] ** 0.5


def hyperbolic_features(x: Tensor, projection: Tensor, scale: float) -> Tensor:
    """Return the positive features of W and of -W side by side: [B, H, N, d], [H, m, d] -> [B, H, N, 2 m]."""
    return positive_features(x, torch.cat([projection, -projection], dim=1), scale)


def arc_cosine_features(x: Tensor, projection: Tensor, order: int) -> Tensor:
    """Return phi_f(x) = sqrt(2/m) max(w_f x, 0)^order: [B, H, N, d], [H, m, d] -> [B, H, N, m]."""
    dots = torch.einsum("bhnd,hmd->bhnm", x, projection)
    return torch.clamp(dots, min=0) ** order * (2 / projection.shape[1]) ** 0.5


def elu_features(x: Tensor) -> Tensor:
    """Return phi_a(x) = x_a + 1 for x_a > 0 and exp(x_a) for x_a <= 0: [B, H, N, d] -> [B, H, N, d]."""
    return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))


def polynomial_features(x: Tensor, scale: float, lower: bool) -> Tensor:
    """Return all d^2 products scale x_a x_b; with the lower orders [1, sqrt(scale) x_a, scale x_a x_b / sqrt(2)].

    Args:
        x: queries or keys, [B, H, N, d].
        scale: scale of the logits.
        lower: whether to include the orders 0 and 1.

    Returns:
        Features, [B, H, N, d^2] or [B, H, N, 1 + d + d^2].
    """
    products = torch.einsum("bhni,bhnj->bhnij", x, x).flatten(-2) * scale  # [B, H, N, d, d] -> [B, H, N, d d]
    if not lower:
        return products
    return torch.cat([torch.ones_like(x[..., :1]), scale**0.5 * x, products / 2**0.5], dim=-1)


def key_factors(key_mask: Tensor | None, key_bias: Tensor | None) -> Tensor | None:
    """Return exp(b_j - max_l b_l) over the keys that take part and 0 for the others, [B, 1 or H, 1, N].

    The weights of attention are normalised, so that a common factor of all keys has no effect. None where there is
    neither a mask [B, N] nor a bias [B, H, N].
    """
    if key_bias is None:
        return None if key_mask is None else key_mask[:, None, None, :]
    if key_mask is not None:
        key_bias = key_bias.masked_fill(~key_mask[:, None], torch.finfo(key_bias.dtype).min)
    factors = torch.exp(key_bias - key_bias.amax(-1, keepdim=True)).unsqueeze(-2)
    return factors if key_mask is None else factors * key_mask[:, None, None, :]


def linear_weights(fq: Tensor, fk: Tensor, key_mask: Tensor | None = None, key_bias: Tensor | None = None) -> Tensor:
    """Return A_ij = phi(q_i)^T phi(k_j) exp(b_j) / sum_l phi(q_i)^T phi(k_l) exp(b_l) over keys that take part.

    Args:
        fq, fk: features of queries and keys, [B, H, N, m].
        key_mask: mask of the keys, [B, N], True for keys to attend to.
        key_bias: bias b of the keys, [B, H, N].

    Returns:
        Weights, [B, H, N, N]; rows whose sum is zero are zero.
    """
    weights = torch.einsum("bhim,bhjm->bhij", fq, fk)
    factors = key_factors(key_mask, key_bias)
    weights = weights if factors is None else weights * factors
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def rotated_feature_weights(
    fq: Tensor, fk: Tensor, rotations: Tensor, key_mask: Tensor | None = None, key_bias: Tensor | None = None
) -> Tensor:
    """Return A_ij = (R_i phi(q_i))^T R_j phi(k_j) exp(b_j) / sum_l phi(q_i)^T phi(k_l) exp(b_l).

    Args:
        fq, fk: features of queries and keys, [B, H, N, m].
        rotations: rotation matrices R, [H, N, m, m].
        key_mask: mask of the keys, [B, N], True for keys to attend to.
        key_bias: bias b of the keys, [B, H, N].

    Returns:
        Weights, [B, H, N, N]; rows whose denominator is zero are zero. Weights may be negative.
    """
    weights = torch.einsum("hiam,bhim,hjal,bhjl->bhij", rotations, fq, rotations, fk)
    total = torch.einsum("bhim,bhjm->bhij", fq, fk)
    factors = key_factors(key_mask, key_bias)
    if factors is not None:
        total, weights = total * factors, weights * factors
    total = total.sum(dim=-1, keepdim=True)
    return torch.where(total == 0, 0.0, weights / torch.where(total == 0, torch.ones_like(total), total))


def softmax_weights(
    q: Tensor,
    k: Tensor,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Return A_ij = exp(scale q_i^T k_j + b_j) / sum_l exp(scale q_i^T k_l + b_l) over keys that take part.

    Args:
        q, k: queries and keys, [B, H, N, d].
        scale: scale of the logits; None for d^-1/2.
        key_mask: mask of the keys, [B, N], True for keys to attend to.
        key_bias: bias b of the keys, [B, H, N].

    Returns:
        Weights, [B, H, N, N]; zero for a sample without keys.
    """
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if key_bias is not None:
        logits = logits + key_bias.unsqueeze(-2)
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, None, :], float("-inf"))
    weights = torch.softmax(logits, dim=-1)
    if key_mask is not None:
        weights = weights.masked_fill(~key_mask.any(-1)[:, None, None, None], 0.0)
    return weights


def modulated_weights(weights: Tensor, decay: Tensor, normalised: bool) -> Tensor:
    """Return A_ij lambda_ij, or A_ij lambda_ij / sum_l A_il lambda_il if normalised.

    Args:
        weights: weights A, [B, H, N, N].
        decay: factors lambda, [H, N, N].
        normalised: whether rows sum to one; rows whose sum is zero stay zero.

    Returns:
        Weights, [B, H, N, N].
    """
    weights = weights * decay
    if not normalised:
        return weights
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def attend(weights: Tensor, v: Tensor) -> Tensor:
    """Return o_i = sum_j A_ij v_j: A [B, H, N, N], v [B, H, N, d] -> [B, H, N, d]."""
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def attend_gated(weights: Tensor, v: Tensor, gates: Tensor) -> Tensor:
    """Return o_i = g_i sum_j A_ij v_j: A [B, H, N, N], v [B, H, N, d], g [B, H, N] -> [B, H, N, d]."""
    return torch.einsum("bhi,bhij,bhjd->bhid", gates, weights, v)


def attend_metric_gated(weights: Tensor, v: Tensor, gates: Tensor) -> Tensor:
    """Return o_i = sum_j A_ij g_i g_j v_j: A [B, H, N, N], v [B, H, N, d], g [B, H, N] -> [B, H, N, d]."""
    return (weights * gates[:, :, :, None] * gates[:, :, None, :]) @ v


def attend_transported(weights: Tensor, v: Tensor, matrices: Tensor) -> Tensor:
    """Return o_i = sum_j A_ij R_j v_j: A [B, H, N, N], v [B, H, N, d], R [H, N, d, d] -> [B, H, N, d]."""
    return torch.einsum("bhij,hjde,bhje->bhid", weights, matrices, v)


def attend_connected(weights: Tensor, v: Tensor, matrices: Tensor) -> Tensor:
    """Return o_i = sum_j A_ij R_i^-1 R_j v_j, for any invertible matrices R.

    Args:
        weights: weights A, [B, H, N, N].
        v: values, [B, H, N, d].
        matrices: matrices R, [H, N, d, d].

    Returns:
        Outputs, [B, H, N, d].
    """
    links = torch.einsum("hiab,hjbc->hijac", torch.linalg.inv(matrices), matrices)  # [H, N, N, d, d]
    return torch.einsum("bhij,hijac,bhjc->bhia", weights, links, v)


def attend_attenuated(fq: Tensor, fk: Tensor, v: Tensor, decay: Tensor, num_prefix: int = 0) -> Tensor:
    """Return sum_j lambda_ij phi(q_i)^T phi(k_j) v_j, with lambda = 1 where either token is a prefix token.

    Args:
        fq, fk: features of queries and keys, [B, H, N, m].
        v: values, [B, H, N, d].
        decay: factors lambda, [H, N, N].
        num_prefix: number of leading tokens without a position.

    Returns:
        Sums, [B, H, N, d].
    """
    decay = decay.clone()
    decay[:, :num_prefix] = 1
    decay[:, :, :num_prefix] = 1
    return torch.einsum("hij,bhim,bhjm,bhjd->bhid", decay, fq, fk, v)
