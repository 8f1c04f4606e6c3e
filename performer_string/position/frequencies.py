"""Initial plane frequencies, and the rotation generators they stand for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from performer_string.position.base import HeadWidthError
from performer_string.utils.validation import check_positive


def planes_of(head_dim: int, family: str) -> int:
    """d / 2; an odd width is an error, since one dimension would stay unturned unnoticed."""
    if head_dim % 2:
        raise HeadWidthError(
            f"{family} turns pairs of dimensions, so the head width has to be even, not {head_dim}. Choose a width "
            f"and a number of heads with an even quotient."
        )
    return head_dim // 2


def axial_frequencies(planes: int, coord_dim: int, base: float, dtype: torch.dtype | None = None) -> Tensor:
    """Each plane turns with one axis: base^(-t / n), t = 0 .. n-1, for the n planes of an axis. [1, C, P]

    Axial RoPE of arXiv:2403.13298 section 3.1, where n = d/4 and base = 100. Planes that cannot be shared out evenly
    go to the first axes.
    """
    if planes < coord_dim:
        raise ValueError(f"{coord_dim} axes need at least as many planes (head width {2 * coord_dim}), not {planes}.")
    check_positive("the base of the frequencies", base)
    omega, start = torch.zeros(1, coord_dim, planes, dtype=torch.float64), 0
    for axis in range(coord_dim):
        n = planes // coord_dim + (axis < planes % coord_dim)
        omega[0, axis, start : start + n] = base ** (-torch.arange(n, dtype=torch.float64) / n)
        start += n
    return omega.to(dtype or torch.get_default_dtype())


def mixed_frequencies(heads: int, planes: int, coord_dim: int, base: float) -> Tensor:
    """Each plane turns with a mixture of the axes: random directions, magnitudes as in the axial form. [heads, C, P]

    RoPE-Mixed of arXiv:2403.13298 section 3.2 and its released code: for each head one random orthogonal frame, whose
    C directions share each of the magnitudes base^(-t / n), n = planes / C. The draw is torch's global generator's.
    """
    check_positive("the base of the frequencies", base)
    frame, upper = torch.linalg.qr(torch.randn(heads, coord_dim, coord_dim, dtype=torch.float32))
    frame = frame * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # Haar, [heads, C, C]
    n = math.ceil(planes / coord_dim)
    magnitudes = (base ** (-torch.arange(n) / n)).repeat(coord_dim)[:planes]  # [P]
    directions = frame.repeat_interleave(n, dim=-1)[..., :planes]  # [heads, C, P]
    return directions * magnitudes


def plane_generators(omega: Tensor, head_dim: int) -> Tensor:
    """L_k = sum_p Omega_kp (e_s e_p^T - e_p e_s^T), s = p + P: infinitesimal turns. [H, C, P] -> [H, C, d, d]"""
    planes = omega.shape[-1]
    turns = omega.new_zeros(*omega.shape[:-1], head_dim, head_dim)
    p = torch.arange(planes, device=omega.device)
    turns[..., p + planes, p], turns[..., p, p + planes] = omega, -omega
    return turns
