"""An exponential decay of the L1 distance, which may be directed, as a factor of the attention weights:

    lambda_ij = exp(-sum_c |p_ic - p_jc| / sigma_c)

It is a product of one decay for each axis, so that its sum over a grid is exact in linear time, at any width. Each axis
may have another width on each side, or one side alone. A head then sees a quadrant of the image, as those of LookHere
(arXiv:2405.13985), whose distances are Euclidean.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from performer_string.bias.base import RelativeBias
from performer_string.bias.widths import bounded_width, raw_width


class L1Decay(RelativeBias):
    """A decay lambda(r) = exp(-sum_c |r_c| / sigma_c), with sigma learned within bounds for each head and axis.

    On a grid of one or two axes its sum takes linear time, and is exact up to rounding. A grid of three axes takes
    quadratic time and linear memory.

    Args:
        num_heads: number H of heads.
        grid: training grid, which has as many axes as the positions; two axes without it.
        sigma: initial width, in patches of the training grid, for both sides of all axes.
        sigma_bounds: bounds (low, high) of sigma, in patches: sigma = low (high / low)^s with s in (0, 1).
        sides: keys that a query sees along each axis, besides those of its own coordinate. `both`: all keys, with one
            sigma. `each`: all keys, with one sigma for lower and one for higher coordinates. `quadrants`: keys on one
            side, so that consecutive heads cover all quadrants. A list for each head gives -1 (lower), 1 (higher) or 0
            (both) for each axis.
        normalised: whether the denominator has the decay too.

    Raises:
        ValueError: an initial sigma out of its bounds, infinite bounds, or sides of another form or size.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        grid: Sequence[int] | None = None,
        sigma: float = 4.0,
        sigma_bounds: tuple[float, float] = (0.25, 64.0),
        sides: str | Sequence[Sequence[int]] = "both",
        normalised: bool = True,
    ):
        super().__init__(num_heads, normalised)
        self.axes = 2 if grid is None else len(grid)
        self.sigma_bounds = sigma_bounds
        raw_sigma = raw_width(sigma, sigma_bounds)
        self.signs = signs_of(sides, num_heads, self.axes)
        widths = 2 if sides == "each" else 1
        self.raw_sigma = nn.Parameter(raw_sigma.repeat(num_heads, self.axes, widths))

    def sigma(self) -> Tensor:
        """Return sigma in patches, for keys of lower and of higher coordinates: [H, C, 2]."""
        return bounded_width(self.raw_sigma, self.sigma_bounds).expand(-1, -1, 2)

    def rates(self) -> Tensor:
        """Return 1 / sigma, and infinity for sides that are not seen: [H, C, 2]."""
        return (1 / self.sigma()).masked_fill(self.hidden(), torch.inf)

    def hidden(self) -> Tensor:
        """Return a mask of the sides that a head does not see, lower and higher coordinates: [H, C, 2]."""
        signs = torch.tensor(self.signs, device=self.raw_sigma.device)  # [H, C]
        return torch.stack([signs > 0, signs < 0], dim=-1)

    def learned(self) -> dict[str, Tensor]:
        """Return sigma of each axis, and of each side where they differ, [H] each."""
        sides = {"_lower": 0, "_higher": 1} if self.raw_sigma.shape[-1] == 2 else {"": 0}
        sigma = self.sigma()
        return {f"sigma_{c}{name}": sigma[:, c, s] for c in range(self.axes) for name, s in sides.items()}

    def log_of_offsets(self, offsets: Tensor) -> Tensor:
        """Return log lambda(r) of offsets r = p_i - p_j, of a query i and a key j: [..., C] -> [H, ...].

        Raises:
            ValueError: offsets of another number of axes.
        """
        if offsets.shape[-1] != self.axes:
            raise ValueError(
                f"exponential-l1: positions must have {self.axes} coordinates, not {offsets.shape[-1]}: build the "
                f"decay with a grid of as many axes."
            )
        distances = torch.stack([offsets.clamp(min=0), (-offsets).clamp(min=0)], dim=-1)  # [..., C, 2]
        view = (-1, *[1] * (offsets.ndim - 1), self.axes, 2)
        logs = -(distances / self.sigma().view(view)).sum((-2, -1))  # not times the rates: infinity times 0 is NaN
        return logs.masked_fill((self.hidden().view(view) & (distances > 0)).any(-1).any(-1), -torch.inf)


def signs_of(sides: str | Sequence[Sequence[int]], heads: int, axes: int) -> list[list[int]]:
    """Return the side of each axis that a head sees, [H, C]: -1 (lower), 1 (higher) or 0 (both).

    Args:
        sides: option of `L1Decay`: `both`, `each`, `quadrants`, or a list of signs for each head and axis.
        heads, axes: numbers H of heads and C of axes.

    Raises:
        ValueError: an unknown name, or a list of another size or with other numbers.
    """
    if sides in ("both", "each"):
        return [[0] * axes for _ in range(heads)]
    if sides == "quadrants":
        quadrants = itertools.cycle(itertools.product((-1, 1), repeat=axes))
        return [list(next(quadrants)) for _ in range(heads)]
    rows = [] if isinstance(sides, str) else [list(row) for row in sides]
    if len(rows) != heads or any(len(row) != axes or not set(row) <= {-1, 0, 1} for row in rows):
        raise ValueError(
            f"sides must be both, each, quadrants, or a list of {heads} heads with -1, 0 or 1 for each of {axes} "
            f"axes, not {sides}."
        )
    return rows
