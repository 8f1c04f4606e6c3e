"""Encodings that are added to the tokens at the entry of the model, and no encoding."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from performer_string.position.base import Encoding, Sizes
from performer_string.utils.dtype import angle_dtype, full_precision
from performer_string.utils.registry import lookup
from performer_string.utils.validation import check_positive


class NoEncoding(Encoding):
    """No position encoding: the model sees a set of patches without an order."""

    additive = True


class Absolute(Encoding):
    """Learned vector for each cell of the training grid.

    Between cells the table is interpolated along each axis, and it is constant outside the grid. The model interpolates
    the positions of larger grids into it. Source: Dosovitskiy et al., arXiv:2010.11929, section 3.1.

    Args:
        sizes: of the attention that the encoding serves, with the training grid.
        interpolation: `linear`, or `bicubic` for cubic convolution (Keys 1981, a = -0.75) as torch and timm have it.

    Raises:
        ValueError: sizes without the training grid, or an unknown interpolation.
    """

    additive = True
    extrapolates = False

    def __init__(self, sizes: Sizes, *, interpolation: str = "linear"):
        super().__init__(sizes)
        self.interpolation = lookup("interpolation of absolute", interpolation, {"linear": 1, "bicubic": 2})
        if self.grid is None:
            raise ValueError("absolute: needs the training grid, for example grid=(14, 14).")
        self.table = nn.Parameter(torch.randn(*self.grid, sizes.num_heads * sizes.head_dim) * 0.02)

    def embedding(self, positions: Tensor) -> Tensor:
        """Return the interpolated table at positions [..., N, C], in cells of the training grid: [..., N, H d]."""
        assert self.grid is not None
        self.check(positions)
        last = torch.tensor(self.grid, device=positions.device) - 1  # [C]
        if self.interpolation > 1:
            return self.cubic(positions, last)
        # Not clamp, whose gradient at the edge depends on the version of torch.
        r = positions.maximum(torch.zeros_like(last).to(positions)).minimum(last.to(positions))  # [..., N, C]
        lower = r.floor().long().minimum((last - 1).clamp(min=0))
        fraction = r - lower  # in [0, 1]
        total = self.table.new_zeros(())
        for corner in itertools.product((0, 1), repeat=self.coord_dim):
            offset = torch.tensor(corner, device=positions.device)
            weight = torch.where(offset.bool(), fraction, 1 - fraction).prod(-1, keepdim=True)  # [..., N, 1]
            cell = (lower + offset).minimum(last)
            total = total + weight.to(self.table.dtype) * self.table[tuple(cell.unbind(-1))]  # [..., N, H d]
        return total

    def cubic(self, positions: Tensor, last: Tensor) -> Tensor:
        """Return the table at positions [..., N, C] by cubic convolution, [..., N, H d]; `last` cells are [C]."""
        # Beyond the border the four cells are one, however far.
        r = positions.maximum(torch.full_like(last, -2).to(positions)).minimum((last + 2).to(positions))
        lower = r.floor().long()
        t = r - lower  # in [0, 1)
        weights = torch.stack([cubic_weight(t + 1), cubic_weight(t), cubic_weight(1 - t), cubic_weight(2 - t)])
        total = self.table.new_zeros(())
        for corner in itertools.product(range(4), repeat=self.coord_dim):
            parts = [weights[k, ..., axis] for axis, k in enumerate(corner)]
            weight = torch.stack(parts, dim=-1).prod(-1, keepdim=True)  # [..., N, 1]
            cell = (lower + torch.tensor(corner, device=r.device) - 1).maximum(torch.zeros_like(last)).minimum(last)
            total = total + weight.to(self.table.dtype) * self.table[tuple(cell.unbind(-1))]  # [..., N, H d]
        return total


def cubic_weight(distance: Tensor, a: float = -0.75) -> Tensor:
    """Return the weight of a cell at a distance of 0 to 2: Keys, IEEE Trans. ASSP 29, 1981, equation 15."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, far)


class Sinusoidal(Encoding):
    """Fixed sines and cosines, sin(r_k w_t) and cos(r_k w_t) with w_t = base^(-t / n), t = 0 .. n - 1.

    Each of the C axes has n = H d / (2 C) frequencies, rounded down. The last dimensions are zero where the width is
    not divisible by 2 C. Source: Vaswani et al., arXiv:1706.03762, section 3.5, in the two-dimensional form of MoCo v3,
    arXiv:2104.02057.

    Args:
        sizes: of the attention that the encoding serves.
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
        positions = full_precision(self.check(positions))
        r = positions.to(torch.promote_types(positions.dtype, angle_dtype(positions)))
        omega = self.base ** (-torch.arange(n, device=r.device, dtype=r.dtype) / n)
        angles = (r[..., None] * omega).flatten(-2)  # [..., N, C n]
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1).to(positions.dtype)
        return nn.functional.pad(waves, (0, self.width - waves.shape[-1]))  # [..., N, H d]
