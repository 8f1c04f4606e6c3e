"""Encodings that are added to the tokens at the entry of the model, and no encoding at all."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from performer_string.position.base import Encoding, Sizes
from performer_string.utils.dtype import full_precision
from performer_string.utils.validation import check_positive


class NoEncoding(Encoding):
    """No positions at all: the model sees a bag of patches."""

    additive = True


class Absolute(Encoding):
    """A learned vector for each cell of the training grid (Dosovitskiy et al., arXiv:2010.11929, section 3.1).

    Elsewhere the table is interpolated linearly along each axis, and held constant outside the grid; the model
    squeezes larger grids onto it, as ViTs are fine-tuned at higher resolutions.
    """

    additive = True
    extrapolates = False

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        if self.grid is None:
            raise ValueError("absolute: needs the training grid, for example grid=(14, 14).")
        self.table = nn.Parameter(torch.randn(*self.grid, sizes.num_heads * sizes.head_dim) * 0.02)

    def embedding(self, positions: Tensor) -> Tensor:
        assert self.grid is not None
        self.check(positions)
        last = torch.tensor(self.grid, device=positions.device) - 1  # [C]
        r = positions.clamp(min=torch.zeros_like(last), max=last)  # [..., N, C]
        low = r.floor().long().minimum((last - 1).clamp(min=0))
        part = r - low  # in [0, 1]
        total = self.table.new_zeros(())
        for corner in itertools.product((0, 1), repeat=self.coord_dim):
            at = torch.tensor(corner, device=positions.device)
            weight = torch.where(at.bool(), part, 1 - part).prod(-1, keepdim=True).to(self.table.dtype)  # [..., N, 1]
            total = total + weight * self.table[tuple((low + at).minimum(last).unbind(-1))]  # [..., N, H d]
        return total


class Sinusoidal(Encoding):
    """Fixed sines and cosines, the width shared out over the axes: sin(r_k w_t), cos(r_k w_t), w_t = base^(-t / n).

    Source: Vaswani et al., arXiv:1706.03762, section 3.5, in the two-dimensional form of arXiv:2104.02057 (MoCo v3).
    Where the width is not divisible by 2 C, the last dimensions stay zero.
    """

    additive = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        base: float = 10000.0,
    ):
        super().__init__(sizes)
        check_positive("sinusoidal: the base of the frequencies", base)
        self.width, self.base = sizes.head_dim * sizes.num_heads, base
        if self.width < 2 * sizes.coord_dim:
            raise ValueError(
                f"sinusoidal: {sizes.coord_dim} axes need a width of at least {2 * sizes.coord_dim}, not {self.width}."
            )

    def embedding(self, positions: Tensor) -> Tensor:
        n = self.width // (2 * self.coord_dim)
        r = full_precision(self.check(positions))
        omega = self.base ** (-torch.arange(n, device=r.device, dtype=r.dtype) / n)
        angles = (r[..., None] * omega).flatten(-2)  # [..., N, C n]
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
        return nn.functional.pad(waves, (0, self.width - waves.shape[-1]))  # [..., N, H d]
