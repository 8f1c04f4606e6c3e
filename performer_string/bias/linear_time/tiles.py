"""A grid cut into tiles with windows around them: which tokens share a window, and views of them.

A slab is some whole rows of tiles, along the first axis, so that its tokens are contiguous; a band is all tiles of a
slab that have their place along the other two axes in common; a run is those of a band whose windows are not cut off
at the edges of the grid, or one tile at an edge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from performer_string.ops.layout import Grid, Triple

TILE_TOKENS = 64  # enough rows for a matrix product to run at full speed; more would only widen the window

Index = tuple[slice, ...]


def tile_of(grid: Grid) -> Triple:
    """The tile: about `TILE_TOKENS` tokens, a cube in as many axes as the grid has."""
    tile, left = [1, 1, 1], TILE_TOKENS
    long = sorted((c for c in range(3) if grid.shape[c] > 1), key=lambda c: grid.shape[c])
    for i, c in enumerate(long):
        tile[c] = min(grid.shape[c], max(1, round(left ** (1 / (len(long) - i)))))
        left = max(1, left // tile[c])
    return tile[0], tile[1], tile[2]


def products(grid: Grid, radius: Triple) -> float:
    """How many products phi(q_i)^T phi(k_j) the windows take."""
    total = 1.0
    for n, a, r in zip(grid.shape, tile_of(grid), radius, strict=True):
        total *= sum((stop - start) * (high - low) for start, stop, low, high in spans(n, a, r))
    return total


def spans(n: int, tile: int, radius: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, stop) of each tile along an axis of n tokens, and (low, high) of its window."""
    for start in range(0, n, tile):
        stop = min(start + tile, n)
        yield start, stop, max(0, start - radius), min(n, stop + radius)


def radius_in_tokens(reach: float, grid: Grid) -> Triple:
    """A reach in patches as whole tokens along each axis, no further than the grid."""
    r0, r1, r2 = (math.ceil(min(n - 1, reach / step - 0.01)) for n, step in zip(grid.shape, grid.steps, strict=True))
    return r0, r1, r2


@dataclass(frozen=True)
class Slab:
    """Tokens [start, stop) of a grid along its first axis, and [low, high) that their windows reach.

    Attributes:
        tokens, around: the same of the grid's tokens.
        shape, window: the sizes of the two as grids.
    """

    start: int
    stop: int
    low: int
    tokens: slice
    around: slice
    shape: Triple
    window: Triple


def slabs(grid: Grid, radius: Triple, most: int) -> Iterator[Slab]:
    """Slabs of at most so many tokens, or of one row of tiles; one of all tokens, if there are no more."""
    n0, n1, n2 = grid.shape
    tile = tile_of(grid)[0]
    rows = n0 if most >= grid.tokens else max(1, most // (n1 * n2) // tile) * tile
    for start, stop, low, high in spans(n0, rows, radius[0]):
        here, around = (slice(first * n1 * n2, last * n1 * n2) for first, last in ((start, stop), (low, high)))
        yield Slab(start, stop, low, here, around, (stop - start, n1, n2), (high - low, n1, n2))


@dataclass(frozen=True)
class Run:
    """Tiles of a band, one after another along the first axis, with windows of the same shape.

    Attributes:
        count: of the tiles, T.
        shape: of each, a_0, a_1, a_2.
        own: their index into the slab [B, H, n_0, n_1, n_2, c].
        first, height: the first row of the band in the first window, and the rows of each window.
        table: their index into the table [H, a_0, a_1, a_2, w_0, w_1, w_2].
    """

    count: int
    shape: Triple
    own: Index
    first: int
    height: int
    table: Index

    def tiles(self, slab: Tensor) -> Tensor:
        """[B, H, n_0, n_1, n_2, c] -> [B, H, T, a_0 a_1 a_2, c]."""
        return slab[self.own].unflatten(2, (self.count, self.shape[0])).flatten(3, 5)

    def put(self, slab: Tensor, tiles: Tensor) -> None:
        """slab[own] = tiles [B, H, T, a_0 a_1 a_2, c]."""
        slab[self.own] = tiles.unflatten(3, self.shape).flatten(2, 3)

    def windows(self, band: Tensor) -> Tensor:
        """[B, H, n_0, w_1 w_2, c] -> [B, H, T, W, c], a view, in which windows overlap."""
        columns, step = band.shape[3], self.shape[0]
        rows = band[:, :, self.first : self.first + (self.count - 1) * step + self.height]
        return rows.flatten(2, 3).unfold(2, self.height * columns, step * columns).mT

    @property
    def apart(self) -> int:
        """So many tiles on, the windows no longer overlap."""
        return -(-self.height // self.shape[0])


def bands(grid: Grid, radius: Triple, slab: Slab) -> Iterator[tuple[Index, list[Run]]]:
    """For each band of a slab: its window along the last two axes, and its tiles."""
    axes = [list(spans(n, a, r)) for n, a, r in zip(grid.shape, tile_of(grid), radius, strict=True)]
    rows = [span for span in axes[0] if slab.start <= span[0] < slab.stop]
    alike = [list(group) for _, group in itertools.groupby(rows, key=lambda span: [x - span[0] for x in span])]
    everything = slice(None)
    for span1 in axes[1]:
        for span2 in axes[2]:
            runs = []
            for group in alike:
                three = (group[0], span1, span2)
                a0, a1, a2 = (stop - start for start, stop, _, _ in three)
                window = [
                    slice(low - start + r, high - start + r)
                    for (start, _, low, high), r in zip(three, radius, strict=True)
                ]
                (start, _, low, high), (_, stop, _, _) = group[0], group[-1]
                rows_own = slice(start - slab.start, stop - slab.start)
                runs.append(
                    Run(
                        count=len(group),
                        shape=(a0, a1, a2),
                        own=(everything, everything, rows_own, slice(*span1[:2]), slice(*span2[:2])),
                        first=low - slab.low,
                        height=high - low,
                        table=(everything, slice(a0), slice(a1), slice(a2), *window),
                    )
                )
            yield (slice(*span1[2:]), slice(*span2[2:])), runs


def band_of(x: Tensor, columns: Index) -> Tensor:
    """[B, H, n_0, n_1, n_2, c] -> the window's part of the last two axes, [B, H, n_0, w_1 w_2, c]."""
    return x[(slice(None), slice(None), slice(None), *columns)].flatten(3, 4).contiguous()


def together(tiles: Tensor) -> list[tuple[tuple[slice | int, ...], slice | int]]:
    """How to go through tiles [B, H, T, ..] in few batches: indices, [n, ..] or [B, H, ..] each, and their heads."""
    batch, heads, count = tiles.shape[:3]
    everything = slice(None)
    if count >= batch * heads:
        return [((b, h), h) for b in range(batch) for h in range(heads)]
    return [((everything, everything, t), everything) for t in range(count)]
