"""Tiles of a grid and the windows around them: which tokens share a window, and views of them.

The grid is cut in three steps. A chunk is some whole rows of tiles along the first axis, so that its tokens are
contiguous. A band is all tiles of a chunk in the same place along the other two axes. A run is the tiles of a band
whose windows have the same shape: those inside the grid, or one tile at an edge.

All of it depends on the grid, the radius and the size of a chunk alone. It is computed once and cached.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from performer_string.ops.layout import Grid, Triple
from performer_string.utils.cache import memoized

# Tokens of a tile: enough rows for a matrix product to run at full speed. More would only widen the window.
TILE_TOKENS = 64

Index = tuple[slice, ...]
ALL = slice(None)


class Span(NamedTuple):
    """A tile [start, stop) along one axis, and the window [low, high) around it."""

    start: int
    stop: int
    low: int
    high: int


@memoized(256)
def tile_shape(grid: Grid) -> Triple:
    """Return the shape of a tile: about `TILE_TOKENS` tokens, with equal sides where the grid has room."""
    tile, tokens_left = [1, 1, 1], TILE_TOKENS
    axes = sorted((c for c in range(3) if grid.shape[c] > 1), key=lambda c: grid.shape[c])
    for i, c in enumerate(axes):
        tile[c] = min(grid.shape[c], max(1, round(tokens_left ** (1 / (len(axes) - i)))))
        tokens_left = max(1, tokens_left // tile[c])
    return tile[0], tile[1], tile[2]


@memoized(1024)
def spans(n: int, tile: int, radius: int) -> tuple[Span, ...]:
    """Return the tiles along an axis of n tokens, with windows cut off at its ends."""
    stops = [(start, min(start + tile, n)) for start in range(0, n, tile)]
    return tuple(Span(start, stop, max(0, start - radius), min(n, stop + radius)) for start, stop in stops)


@memoized(1024)
def count_products(grid: Grid, radius: Triple) -> float:
    """Return the number of products phi(q_i)^T phi(k_j) that the windows take."""
    total = 1.0
    for n, tile, r in zip(grid.shape, tile_shape(grid), radius, strict=True):
        total *= sum((span.stop - span.start) * (span.high - span.low) for span in spans(n, tile, r))
    return total


def radius_in_tokens(reach: float, grid: Grid) -> Triple:
    """Return a reach in patches as whole tokens along each axis, at most the grid's size less one."""
    r0, r1, r2 = [math.ceil(min(n - 1, reach / step - 0.01)) for n, step in zip(grid.shape, grid.steps, strict=True)]
    return r0, r1, r2


@dataclass(frozen=True)
class Run:
    """Consecutive tiles of a band along the first axis, whose windows have the same shape.

    Attributes:
        count: number T of tiles.
        tile: shape of each tile, a_0, a_1, a_2; A is their product.
        index: index of the tiles in a chunk [B, H, n_0, n_1, n_2, c].
        first_row: first row of the first window, counted in its band.
        rows: number of rows of each window; W is rows times the columns of the band.
        table_index: index of the window in the table [H, a_0, a_1, a_2, w_0, w_1, w_2].
    """

    count: int
    tile: Triple
    index: Index
    first_row: int
    rows: int
    table_index: Index

    def tiles(self, chunk: Tensor) -> Tensor:
        """Return the tokens of each tile, [B, H, n_0, n_1, n_2, c] -> [B, H, T, A, c]."""
        return chunk[self.index].unflatten(2, (self.count, self.tile[0])).flatten(3, 5)

    def put(self, chunk: Tensor, tiles: Tensor) -> None:
        """Write tiles [B, H, T, A, c] to their places in a chunk [B, H, n_0, n_1, n_2, c]."""
        chunk[self.index] = tiles.unflatten(3, self.tile).flatten(2, 3)

    def windows(self, band: Tensor) -> Tensor:
        """Return the window of each tile as an overlapping view, [B, H, n_0, w_1 w_2, c] -> [B, H, T, W, c]."""
        columns, step = band.shape[3], self.tile[0]
        rows = band[:, :, self.first_row : self.first_row + (self.count - 1) * step + self.rows]
        return rows.flatten(2, 3).unfold(2, self.rows * columns, step * columns).mT

    @property
    def disjoint_step(self) -> int:
        """The number of tiles from one window to the next that does not overlap it."""
        return -(-self.rows // self.tile[0])


@dataclass(frozen=True)
class Band:
    """The tiles of a chunk in one place along the last two axes.

    Attributes:
        columns: index of the window along the last two axes.
        runs: runs of tiles, in order along the first axis.
    """

    columns: Index
    runs: tuple[Run, ...]

    def window_rows(self, x: Tensor) -> Tensor:
        """Return a contiguous copy of the window's columns, [B, H, n_0, n_1, n_2, c] -> [B, H, n_0, w_1 w_2, c]."""
        return x[(ALL, ALL, ALL, *self.columns)].flatten(3, 4).contiguous()


@dataclass(frozen=True)
class WindowChunk:
    """Whole rows of tiles, and the tokens that their windows reach.

    Attributes:
        tokens, keys: slices of the queries and of the keys among the grid's tokens.
        shape, window_shape: shapes of both as grids.
        bands: all tiles of the chunk.
    """

    tokens: slice
    keys: slice
    shape: Triple
    window_shape: Triple
    bands: tuple[Band, ...]


@memoized(32)
def window_chunks(grid: Grid, radius: Triple, max_tokens: int) -> tuple[WindowChunk, ...]:
    """Return chunks of at most `max_tokens` tokens, or of one row of tiles; one chunk where all tokens fit."""
    n0, n1, n2 = grid.shape
    tile, row_tokens = tile_shape(grid), n1 * n2
    rows = n0 if max_tokens >= grid.tokens else max(1, max_tokens // row_tokens // tile[0]) * tile[0]
    result, cuts = [], {}
    for start, stop, low, high in spans(n0, rows, radius[0]):
        tile_rows = [span for span in spans(n0, tile[0], radius[0]) if start <= span.start < stop]
        relative = tuple(Span(*(x - start for x in span)) for span in tile_rows)
        if relative not in cuts:  # all chunks inside a grid are cut in the same way
            cuts[relative] = _bands(relative, grid, radius)
        result.append(
            WindowChunk(
                tokens=slice(start * row_tokens, stop * row_tokens),
                keys=slice(low * row_tokens, high * row_tokens),
                shape=(stop - start, n1, n2),
                window_shape=(high - low, n1, n2),
                bands=cuts[relative],
            )
        )
    return tuple(result)


def _bands(tile_rows: tuple[Span, ...], grid: Grid, radius: Triple) -> tuple[Band, ...]:
    """Return the bands of a chunk, whose rows of tiles count from its first row."""
    _, tile1, tile2 = tile_shape(grid)
    groups = [list(group) for _, group in itertools.groupby(tile_rows, key=lambda s: [x - s.start for x in s])]
    return tuple(
        Band(
            columns=(slice(span1.low, span1.high), slice(span2.low, span2.high)),
            runs=tuple(_run(group, span1, span2, radius, tile_rows[0].low) for group in groups),
        )
        for span1 in spans(grid.shape[1], tile1, radius[1])
        for span2 in spans(grid.shape[2], tile2, radius[2])
    )


def _run(group: list[Span], span1: Span, span2: Span, radius: Triple, chunk_low: int) -> Run:
    """Return the run of a group of rows of tiles with equal windows, in the band of `span1` and `span2`."""
    first, last = group[0], group[-1]
    axes = (first, span1, span2)
    a0, a1, a2 = (span.stop - span.start for span in axes)
    window = [
        slice(span.low - span.start + r, span.high - span.start + r) for span, r in zip(axes, radius, strict=True)
    ]
    return Run(
        count=len(group),
        tile=(a0, a1, a2),
        index=(ALL, ALL, slice(first.start, last.stop), *(slice(span.start, span.stop) for span in (span1, span2))),
        first_row=first.low - chunk_low,
        rows=first.high - first.low,
        table_index=(ALL, slice(a0), slice(a1), slice(a2), *window),
    )


@memoized(256)
def batches(batch: int, heads: int, count: int) -> tuple[tuple[tuple[slice | int, ...], slice | int], ...]:
    """Return the fewest batches of tiles [B, H, T, ..]: the index of each, and that of its heads.

    Each batch is all tiles of one head and sample, [T, ..], or one tile of all heads, [B, H, ..].
    """
    if count >= batch * heads:
        return tuple(((b, h), h) for b in range(batch) for h in range(heads))
    return tuple(((ALL, ALL, t), ALL) for t in range(count))
