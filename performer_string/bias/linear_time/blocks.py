"""Blocks of a grid of rows and columns, for the exact sum of an exponential decay of the L1 distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from performer_string.bias.linear_time.inputs import from_cells, to_cells
from performer_string.ops.layout import Grid


@dataclass(frozen=True)
class Blocks:
    """Blocks of a grid of rows and columns, the last ones filled up with tokens that take no part.

    Attributes:
        rows, columns: numbers of tokens of the grid along both axes.
        height, width: numbers of tokens of a block along both axes.
    """

    rows: int
    columns: int
    height: int
    width: int

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of blocks along both axes."""
        return -(-self.rows // self.height), -(-self.columns // self.width)

    @property
    def places(self) -> int:
        """Number of places of all blocks, also of those that hold no token."""
        return self.counts[0] * self.height * self.counts[1] * self.width

    @property
    def are_full(self) -> bool:
        """Whether every place of every block holds a token."""
        return self.rows % self.height == 0 and self.columns % self.width == 0

    def split(self, x: Tensor) -> Tensor:
        """Sort tokens by blocks, with zeros in the places without one: [B, N, c] -> [Y, X, B, h, w, c]."""
        cells = to_cells(x, (self.rows, self.columns, 1), (self.height, self.width, 1))  # [Y X, B, h w, c]
        return cells.unflatten(0, self.counts).unflatten(3, (self.height, self.width))

    def join(self, x: Tensor) -> Tensor:
        """Undo `split`: [Y, X, B, h, w, c] -> [B, N, c]."""
        cells = x.flatten(3, 4).flatten(0, 1)
        return from_cells(cells, (self.rows, self.columns, 1), (self.height, self.width, 1))


def active_axes(grid: Grid) -> list[int]:
    """Return the axes of a grid with more than one token."""
    return [axis for axis, n in enumerate(grid.shape) if n > 1]


def make_blocks(grid: Grid, side: int) -> Blocks | None:
    """Return blocks of at most side x side tokens, or side^2 along one axis; None for three axes.

    Blocks are as equal as possible, so that few places are without a token.
    """
    axes = active_axes(grid)
    if len(axes) > 2:
        return None
    rows, columns = (grid.tokens, 1) if len(axes) < 2 else (grid.shape[axes[0]], grid.shape[axes[1]])
    most = side if len(axes) == 2 else side**2
    height, width = (math.ceil(n / math.ceil(n / most)) for n in (rows, columns))
    return Blocks(rows, columns, height, width)
