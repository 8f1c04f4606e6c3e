"""Initial plane frequencies of the rotary encodings, and the generators that they define."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from performer_string.position.base import HeadWidthError
from performer_string.utils.validation import check_positive


def num_planes(head_dim: int, family: str) -> int:
    """Return the number of rotation planes, d / 2.

    Raises:
        HeadWidthError: an odd width, whose last dimension would never be rotated.
    """
    if head_dim % 2:
        raise HeadWidthError(
            f"{family} rotates pairs of dimensions, so the head width must be even, not {head_dim}. Choose a width "
            f"and a number of heads with an even quotient."
        )
    return head_dim // 2


def axial_frequencies(
    planes: int, coord_dim: int, base: float, dtype: torch.dtype | None = None, inclusive: bool = False
) -> Tensor:
    """Return the frequencies of axial RoPE, where each plane rotates with one axis.

    The n planes of an axis have the frequencies base^(-t / n), t = 0 .. n - 1. Where the planes cannot be divided
    evenly, the first axes have one more. Source: arXiv:2403.13298, section 3.1, where n = d / 4 and base = 100.

    Args:
        planes: number P of planes.
        coord_dim: dimension C of the positions.
        base: base of the geometric sequence.
        dtype: type of the result; torch's default type if None.
        inclusive: whether the frequencies are base^(-t / (n - 1)), the last of which is 1 / base.

    Returns:
        Omega, [1, C, P], in radians per patch.

    Raises:
        ValueError: fewer planes than axes, or a base that is not positive.
    """
    if planes < coord_dim:
        raise ValueError(f"{coord_dim} axes need at least as many planes (head width {2 * coord_dim}), not {planes}.")
    check_positive("the base of the frequencies", base)
    omega, start = torch.zeros(1, coord_dim, planes, dtype=torch.float64), 0
    for axis in range(coord_dim):
        n = planes // coord_dim + (axis < planes % coord_dim)
        omega[0, axis, start : start + n] = base ** (-torch.arange(n, dtype=torch.float64) / max(1, n - inclusive))
        start += n
    return omega.to(dtype or torch.get_default_dtype())


def mixed_frequencies(heads: int, planes: int, coord_dim: int, base: float) -> Tensor:
    """Return random frequencies of RoPE-Mixed, where each plane rotates with a mixture of the axes.

    Each head has one random orthogonal frame. Its C directions share the magnitudes base^(-t / n), t = 0 .. n - 1, with
    n = P / C rounded up. Source: arXiv:2403.13298, section 3.2, and its released code. The draw is from torch's global
    generator.

    Args:
        heads: number of heads with parameters.
        planes: number P of planes.
        coord_dim: dimension C of the positions.
        base: base of the geometric sequence.

    Returns:
        Omega, [heads, C, P], in radians per patch.

    Raises:
        ValueError: a base that is not positive.
    """
    check_positive("the base of the frequencies", base)
    frame, upper = torch.linalg.qr(torch.randn(heads, coord_dim, coord_dim, dtype=torch.float32))
    # LAPACK fixes the signs of Q by a convention. With the signs of R's diagonal the frame is Haar distributed.
    frame = frame * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # [heads, C, C]
    n = math.ceil(planes / coord_dim)
    magnitudes = (base ** (-torch.arange(n) / n)).repeat(coord_dim)[:planes]  # [P]
    directions = frame.repeat_interleave(n, dim=-1)[..., :planes]  # [heads, C, P]
    return directions * magnitudes


def plane_generators(omega: Tensor, head_dim: int) -> Tensor:
    """Return the generators of plane rotations, L_k = sum_p Omega_kp (e_s e_p^T - e_p e_s^T) with s = p + P.

    Args:
        omega: frequencies, [H, C, P].
        head_dim: width d of a head.

    Returns:
        Skew-symmetric matrices, [H, C, d, d].
    """
    planes = omega.shape[-1]
    generators = omega.new_zeros(*omega.shape[:-1], head_dim, head_dim)
    p = torch.arange(planes, device=omega.device)
    generators[..., p + planes, p], generators[..., p, p + planes] = omega, -omega
    return generators
