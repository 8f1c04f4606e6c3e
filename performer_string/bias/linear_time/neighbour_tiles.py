"""Tiles of a grid and the whole tiles around them, for sums over neighbours: how a grid is cut, and views as tiles.

All of it depends on the grid, the radius and the size of a chunk alone. It is computed once and cached.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from performer_string.ops.layout import Grid, Triple
from performer_string.utils.cache import memoized

# Sides of a tile, on grids of one axis and of two. The smallest that is at least the radius is taken, or else the
# largest.
SIDES = {1: (64, 128, 256), 2: (8, 16)}
Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tiling:
    """Tiles of a grid.

    Attributes:
        tile: number of tokens of a tile along each axis; A is their product.
        reach: number of tiles on each side of a tile, along each axis.
        counts: number of tiles of the grid along each axis.
    """

    tile: Triple
    reach: Triple
    counts: Triple

    def neighbours(self, rows: int) -> Iterator[tuple[slice, ...]]:
        """Yield the index of each neighbour among the tiles of keys [B, H, T_0, T_1, T_2, ..] of some rows."""
        counts = (rows, *self.counts[1:])
        for first in itertools.product(*(range(2 * r + 1) for r in self.reach)):
            yield (slice(None), slice(None), *(slice(f, f + n) for f, n in zip(first, counts, strict=True)))


@memoized(256)
def make_tiling(grid: Grid, radius: Triple) -> Tiling | None:
    """Return the tiles for a radius in tokens; None for grids of three axes, which would have too many neighbours."""
    axes = sum(n > 1 for n in grid.shape)
    if axes not in SIDES:
        return None
    tile, reach = [], []
    for n, r in zip(grid.shape, radius, strict=True):
        side = next((side for side in SIDES[axes] if side >= r), SIDES[axes][-1])
        tile.append(min(n, side))
        reach.append(0 if n <= side else math.ceil(min(r, n - 1) / side))
    counts = [math.ceil(n / a) for n, a in zip(grid.shape, tile, strict=True)]
    return Tiling((tile[0], tile[1], tile[2]), (reach[0], reach[1], reach[2]), (counts[0], counts[1], counts[2]))


def to_tiles(x: Tensor, tile: Triple, pads: Pads) -> Tensor:
    """Return tokens of a grid as tiles, with zeros before and after each axis.

    Args:
        x: tokens, [B, H, n_0, n_1, n_2, c].
        tile: number of tokens of a tile along each axis.
        pads: padding before and after each axis, which makes its length a multiple of the tile's.

    Returns:
        Tiles, [B, H, T_0, T_1, T_2, A, c].
    """
    x = F.pad(x, (0, 0, *(n for pad in reversed(pads) for n in pad)))
    for axis in (4, 3, 2):
        x = x.unflatten(axis, (-1, tile[axis - 2]))
    return x.permute(0, 1, 2, 4, 6, 3, 5, 7, 8).flatten(5, 7)


def from_tiles(tiles: Tensor, tile: Triple, pads: Pads) -> Tensor:
    """Return the tokens of tiles without the padding, the inverse of `to_tiles`: [B, H, n_0 n_1 n_2, c]."""
    x = tiles.unflatten(5, tile).permute(0, 1, 2, 5, 3, 6, 4, 7, 8).flatten(6, 7).flatten(4, 5).flatten(2, 3)
    inside = (slice(before, x.shape[2 + axis] - after) for axis, (before, after) in enumerate(pads))
    return x[(slice(None), slice(None), *inside)].flatten(2, 4)


@dataclass(frozen=True)
class NeighbourChunk:
    """Some rows of tiles, and the keys around them.

    Attributes:
        rows: number of rows of tiles.
        tokens, keys: slices of the queries and of the keys among the grid's tokens.
        query_pads, key_pads: padding that makes whole tiles of them.
    """

    rows: int
    tokens: slice
    keys: slice
    query_pads: Pads
    key_pads: Pads


@memoized(64)
def neighbour_chunks(grid: Grid, tiling: Tiling, max_tokens: int) -> tuple[NeighbourChunk, ...]:
    """Return chunks of about `max_tokens` tokens, or of one row of tiles; one chunk where all tokens fit."""
    (n0, n1, n2), a0 = grid.shape, tiling.tile[0]
    rows = tiling.counts[0] if max_tokens >= grid.tokens else max(1, max_tokens // (n1 * n2 * a0))
    halo = tiling.reach[0] * a0
    rest = [(r * a, r * a + -n % a) for n, a, r in zip((n1, n2), tiling.tile[1:], tiling.reach[1:], strict=True)]
    result = []
    for first in range(0, tiling.counts[0], rows):
        count = min(rows, tiling.counts[0] - first)
        start, stop = first * a0, (first + count) * a0
        low, high = max(0, start - halo), min(n0, stop + halo)
        result.append(
            NeighbourChunk(
                rows=count,
                tokens=slice(start * n1 * n2, min(n0, stop) * n1 * n2),
                keys=slice(low * n1 * n2, high * n1 * n2),
                query_pads=((0, stop - min(n0, stop)), (0, -n1 % tiling.tile[1]), (0, -n2 % tiling.tile[2])),
                key_pads=((low - (start - halo), stop + halo - high), rest[0], rest[1]),
            )
        )
    return tuple(result)
