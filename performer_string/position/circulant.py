"""Circulant-STRING: block-circulant generators, whose rotation planes are a Fourier basis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from performer_string.position.base import Sizes, resolve_block_size
from performer_string.position.block_rotation import block_diagonal
from performer_string.position.frequencies import mixed_frequencies
from performer_string.position.separable import SeparableEncoding
from performer_string.utils.registry import lookup


def fourier_basis(block_size: int, blocks: int) -> Tensor:
    """Return the real Fourier basis of each block, with the columns in the order cosines, sines, constants.

    In row n of a block the cosines are sqrt(2/b) cos(2 pi k n / b), k = 1 .. (b - 1) // 2, and the sines
    sqrt(2/b) sin(2 pi k n / b). The constant column and, for an even b, the alternating one are not rotated.

    Args:
        block_size: size b of a block.
        blocks: number of blocks, d / b.

    Returns:
        An orthogonal matrix, [d, d], in float64.
    """
    planes = (block_size - 1) // 2
    n = torch.arange(block_size, dtype=torch.float64)[:, None]  # [b, 1]
    phase = 2 * math.pi * n * torch.arange(1, planes + 1) / block_size  # [b, p]
    cosines, sines = phase.cos() * math.sqrt(2 / block_size), phase.sin() * math.sqrt(2 / block_size)
    fixed = [torch.full_like(n, block_size**-0.5)]
    if block_size % 2 == 0:
        fixed.append((1 - 2 * (n % 2)) * block_size**-0.5)
    eye = torch.eye(blocks, dtype=torch.float64)
    return torch.cat([torch.kron(eye, part) for part in (cosines, sines, torch.cat(fixed, 1))], dim=1)  # [d, d]


def sine_matrix(block_size: int) -> Tensor:
    """Return M of Omega = M a, M_kj = 2 sin(2 pi j k / b) with j, k = 1 .. (b - 1) // 2, so that M M^T = b I.

    M is symmetric, [p, p] with p = (b - 1) // 2, in float64.
    """
    k = torch.arange(1, (block_size - 1) // 2 + 1, dtype=torch.float64)
    return 2 * torch.sin(2 * math.pi * k[:, None] * k / block_size)


# Initial C, for a shape and the head width d; None for the frequencies of RoPE-Mixed. The guide to Circulant-STRING for
# Performers has zero, normal and xavier in its section 8.1, and small in its code, section 11.
STARTS: dict[str, Callable[[tuple[int, ...], int], Tensor] | None] = {
    "rope-mixed": None,
    "zero": lambda shape, d: torch.zeros(shape),
    "normal": lambda shape, d: torch.randn(shape) * d**-0.5,
    "xavier": lambda shape, d: (2 * torch.rand(shape) - 1) * (3 / d) ** 0.5,
    "small": lambda shape, d: torch.randn(shape) * 0.01,
}


class CirculantSTRING(SeparableEncoding):
    """Circulant-STRING, L_k = C_k - C_k^T with C_k block-circulant, hence R(r) = F Rot(Omega r) F^T.

    F is the real Fourier basis. Only the antisymmetric part of the coefficients of a circulant enters L, so only that
    is a parameter: a_j, j = 1 .. (b - 1) // 2, for each block, axis and head. The eigenvalues of a block are +- i 2
    sum_j a_j sin(2 pi j k / b). Source: Schenck et al., arXiv:2502.02562, section 3.2 (Theorem 3.5).

    Args:
        sizes: sizes of the attention that the encoding serves.
        block_size: size b of a block, from 3 (4 in the papers) to d, a divisor of d; d by default. Each block has
            (b - 1) // 2 planes, so that one or two of its b dimensions are not rotated.
        start: initial values: `rope-mixed` for the frequencies of RoPE-Mixed; or the distribution of C: `zero`, which
            rotates nothing, `normal` for N(0, 1 / d), `xavier` for the uniform distribution of that variance, `small`
            for N(0, 0.01^2).
        base: base of the frequencies of RoPE-Mixed; other starts have none.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: a block size that does not fit, or a base that is not positive.
    """

    without_effect: ClassVar = {"base": ("start", tuple(name for name, draw in STARTS.items() if draw is not None))}
    fourier: Tensor
    sines: Tensor

    def __init__(
        self,
        sizes: Sizes,
        *,
        block_size: int | None = None,
        start: str = "rope-mixed",
        base: float = 10.0,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        draw = lookup("start of circulant-string", start, STARTS)
        b = resolve_block_size("circulant-string", sizes.head_dim, block_size, 3)
        self.block_size, self.blocks = b, sizes.head_dim // b
        sines = sine_matrix(b)
        if draw is None:
            omega = mixed_frequencies(self.parameter_heads, self.blocks * len(sines), sizes.coord_dim, base)
            omega = omega.unflatten(-1, (self.blocks, -1))  # [H, C, blocks, p]
            a = omega @ sines.to(omega) / b  # a = M^T omega / b, rows
        else:
            c = draw((self.parameter_heads, sizes.coord_dim, self.blocks, b), sizes.head_dim)
            a = (c[..., 1:] - c[..., 1:].flip(-1))[..., : len(sines)]  # a_j = c_j - c_(b-j)
        self.coefficients = nn.Parameter(a)
        self.register_computed_buffers()

    def computed_buffers(self) -> dict[str, Tensor]:
        """Return the Fourier basis F, [d, d], and the sine matrix M, [p, p]."""
        return {"fourier": fourier_basis(self.block_size, self.blocks), "sines": sine_matrix(self.block_size)}

    def frequencies(self) -> Tensor:
        """Return Omega = M a, [parameter_heads, C, P], in radians per patch."""
        return (self.coefficients.to(self.sines.dtype) @ self.sines.mT).flatten(-2)  # [H, C, P]

    def basis(self) -> Tensor:
        """Return F, [1, d, d]."""
        return self.fourier[None]

    def generators(self) -> Tensor:
        """Return C_k - C_k^T block by block, [layers H, C, d, d].

        Entry (m, n) of a block is c[(m - n) mod b] with c_j = a_j and c_(b-j) = -a_j.
        """
        b, a = self.block_size, self.coefficients
        c = a.new_zeros(*a.shape[:-1], b)  # [H, C, blocks, b]
        p = a.shape[-1]
        c[..., 1 : p + 1], c[..., b - p :] = a, -a.flip(-1)
        n = torch.arange(b, device=a.device)
        block = c[..., (n[:, None] - n) % b]  # [H, C, blocks, b, b]
        return self.all_heads(block_diagonal(block))
