"""Encodings that are added to the tokens at the entry of the model, and no encoding."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from performer_string.position.base import Encoding, Sizes
from performer_string.position.grid import clipped, corners, linear_cells
from performer_string.utils.dtype import angle_dtype
from performer_string.utils.registry import lookup
from performer_string.utils.validation import check_not_negative, check_positive


class NoEncoding(Encoding):
    """No position encoding: the model sees a set of patches without an order."""

    additive = True


class Absolute(Encoding):
    """Learned vector for each cell of the training grid.

    Between cells the table is interpolated along each axis, and it is constant outside the grid. The model interpolates
    the positions of larger grids into it. Source: Dosovitskiy et al., arXiv:2010.11929, section 3.1.

    Args:
        sizes: sizes of the attention that the encoding serves, with the training grid.
        interpolation: interpolation between cells: `linear`, or `bicubic` for cubic convolution (Keys 1981, a = -0.75)
            as in torch, and in timm with `antialias=False`.
        init_std: standard deviation of the initial table.

    Raises:
        ValueError: sizes without the training grid, an unknown interpolation, or an init_std below 0.
    """

    counts_patches = True
    additive = True
    extrapolates = False

    def __init__(self, sizes: Sizes, *, interpolation: str = "linear", init_std: float = 0.02):
        super().__init__(sizes)
        check_not_negative("init_std", init_std)
        self.cells_on = lookup(
            "interpolation of absolute", interpolation, {"linear": linear_cells, "bicubic": cubic_cells}
        )
        if self.grid is None:
            raise ValueError("absolute: needs the training grid, for example grid=(14, 14).")
        self.table = nn.Parameter(torch.randn(*self.grid, sizes.num_heads * sizes.head_dim) * init_std)

    def embedding(self, positions: Tensor) -> Tensor:
        """Return the interpolated table at positions [..., N, C], in cells of the training grid: [..., N, H d]."""
        assert self.grid is not None
        axes = [self.cells_on(r, size) for r, size in zip(self.check(positions).unbind(-1), self.grid, strict=True)]
        parts = (weight[..., None].to(self.table.dtype) * self.table[cells] for cells, weight in corners(axes))
        return functools.reduce(torch.add, parts)  # [..., N, H d]


def cubic_cells(positions: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the four cells around positions along one axis, and their weights by cubic convolution.

    Arguments and results are those of `linear_cells`, with four pairs.
    """
    r = clipped(positions, -2, size + 1)  # further out all four cells are the border cell
    lower = r.floor().long()
    t = r - lower  # in [0, 1)
    weights = [cubic_weight(t + 1), cubic_weight(t), cubic_weight(1 - t), cubic_weight(2 - t)]
    return [((lower + k - 1).clamp(0, size - 1), weight) for k, weight in enumerate(weights)]


def cubic_weight(distance: Tensor) -> Tensor:
    """Return the weight of a cell at a distance of 0 to 2: Keys, IEEE Trans. ASSP 29, 1981, equation 15."""
    a = -0.75
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, far)


class Sinusoidal(Encoding):
    """Fixed sines and cosines, sin(r_k w_t) and cos(r_k w_t) with w_t = base^(-t / n), t = 0 .. n - 1.

    Each of the C axes has n = H d / (2 C) frequencies, rounded down. The last dimensions are zero where the width is
    not divisible by 2 C. Source: Vaswani et al., arXiv:1706.03762, section 3.5, in the two-dimensional form of MoCo v3,
    arXiv:2104.02057.

    Args:
        sizes: sizes of the attention that the encoding serves.
        base: base of the geometric sequence of frequencies.

    Raises:
        ValueError: a base that is not positive, or a width below 2 C.
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
        """Return the sines and then the cosines at positions [..., N, C], in patches: [..., N, H d]."""
        n = self.width // (2 * self.coord_dim)
        dtype = torch.promote_types(self.check(positions).dtype, torch.float32)
        r = positions.to(torch.promote_types(dtype, angle_dtype(positions)))
        omega = self.base ** (-torch.arange(n, device=r.device, dtype=r.dtype) / n)
        angles = (r[..., None] * omega).flatten(-2)  # [..., N, C n]
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype)
        return nn.functional.pad(waves, (0, self.width - waves.shape[-1]))  # [..., N, H d]
