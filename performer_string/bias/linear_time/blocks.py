"""Blocks of a grid of rows and columns, for the exact sum of an exponential decay of the L1 distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

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
        (y, x_count), batch, c = self.counts, x.shape[0], x.shape[-1]
        x = x.unflatten(1, (self.rows, self.columns))
        x = F.pad(x, (0, 0, 0, x_count * self.width - self.columns, 0, y * self.height - self.rows))
        x = x.view(batch, y, self.height, x_count, self.width, c)
        return x.permute(1, 3, 0, 2, 4, 5).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """Undo `split`: [Y, X, B, h, w, c] -> [B, N, c]."""
        y, x_count, batch, h, w, c = x.shape
        x = x.permute(2, 0, 3, 1, 4, 5).reshape(batch, y * h, x_count * w, c)
        return x[:, : self.rows, : self.columns].flatten(1, 2)


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
