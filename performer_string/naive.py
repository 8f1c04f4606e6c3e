"""The definitions, dense and in full: what every faster form is tested against, and shares no code with.

Everything here takes and returns whatever floating type it is given, and holds N x N or N x m x d at will.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, generators: Tensor, positions: Tensor) -> Tensor:
    """exp(sum_k r_k L_k) x for each token: x [B, H, N, d], generators [H, C, d, d], positions [N, C]."""
    exponents = torch.einsum("nc,hcij->hnij", positions, generators)
    return torch.einsum("hnij,bhnj->bhni", torch.linalg.matrix_exp(exponents.contiguous()), x)


def positive_features(x: Tensor, projection: Tensor, scale: float) -> Tensor:
    """phi_f(x) = m^-1/2 exp(sqrt(scale) w_f x - scale |x|^2 / 2): [B, H, N, d], [H, m, d] -> [B, H, N, m]."""
    dots = torch.einsum("bhnd,hmd->bhnm", x, projection)
    squares = torch.einsum("bhnd,bhnd->bhn", x, x).unsqueeze(-1)
    return torch.exp(scale**0.5 * dots - 0.5 * scale * squares) / projection.shape[1] ** 0.5


def hyperbolic_features(x: Tensor, projection: Tensor, scale: float) -> Tensor:
    """The positive features of W and of -W side by side."""
    return positive_features(x, torch.cat([projection, -projection], dim=1), scale)


def arc_cosine_features(x: Tensor, projection: Tensor, order: int) -> Tensor:
    """phi_f(x) = sqrt(2/m) max(w_f x, 0)^p."""
    dots = torch.einsum("bhnd,hmd->bhnm", x, projection)
    return torch.clamp(dots, min=0) ** order * (2 / projection.shape[1]) ** 0.5


def linear_weights(fq: Tensor, fk: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """A_ij = phi(q_i)^T phi(k_j) / sum_j phi(q_i)^T phi(k_j) over the keys that take part. [B, H, N, N]"""
    weights = torch.einsum("bhim,bhjm->bhij", fq, fk)
    if key_mask is not None:
        weights = weights * key_mask[:, None, None, :]
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def softmax_weights(q: Tensor, k: Tensor, scale: float | None = None, key_mask: Tensor | None = None) -> Tensor:
    """A_ij = exp(scale q_i^T k_j) / sum_j exp(scale q_i^T k_j) over the keys that take part. [B, H, N, N]"""
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, None, :], float("-inf"))
    return torch.softmax(logits, dim=-1).nan_to_num(0.0)  # a row without keys is zero


def attend(weights: Tensor, v: Tensor) -> Tensor:
    """o_i = sum_j A_ij v_j."""
    return torch.einsum("bhij,bhjd->bhid", weights, v)
