"""Windows of whole tiles: each tile attends to itself and to the tiles around it, in few and large products for a GPU.

    out_i = sum over neighbours p of sum_(j in the tile at p) lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j

Each neighbour is one batched product over all tiles, heads and samples. A CPU takes 1.6 to 4.3 times the time
of `narrow_windows` (radius 1 to 5, 64 x 64 tokens, measured by hand).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.bias.linear_time.window import Bias, Windows
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.cache import memoized

# Sides of a tile, on grids of one axis and of two. The smallest that is at least the radius is taken, or else the
# largest.
SIDES = {1: (64, 128, 256), 2: (8, 16)}
Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TileChunk:
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


@dataclass(frozen=True)
class WholeTiles(Windows):
    """Tiles of a grid, with a window of each that is made of whole tiles.

    Attributes:
        grid: grid of the tokens.
        tile: number of tokens of a tile along each axis; A is their product.
        reach: number of tiles on each side of a tile, along each axis.
        products: type of the operands of products; that of the table by default, in which sums are.
    """

    grid: Grid
    tile: Triple
    reach: Triple
    products: torch.dtype | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles of the grid along each axis."""
        return tuple(math.ceil(n / a) for n, a in zip(self.grid.shape, self.tile, strict=True))

    def neighbours(self, rows: int) -> Iterator[tuple[slice, ...]]:
        """Yield the index of each neighbour among the tiles of keys [B, H, T_0, T_1, T_2, ..] of some rows."""
        counts = (rows, *self.counts[1:])
        for first in itertools.product(*(range(2 * r + 1) for r in self.reach)):
            yield (slice(None), slice(None), *(slice(f, f + n) for f, n in zip(first, counts, strict=True)))

    def table(self, bias: Bias, like: Tensor) -> Tensor:
        """Return lambda from each token of a tile to each token of each neighbour; see `Windows.table`.

        Returns:
            Factors lambda, [P, H, 1, 1, 1, A, A], for P neighbours in the order of `neighbours`.
        """
        offsets, places = [], []
        axes = zip(self.grid.shape, self.tile, self.reach, self.grid.steps, strict=True)
        for axis, (n, a, r, step) in enumerate(axes):
            largest = a * (r + 1) - 1
            steps = torch.arange(-largest, largest + 1, device=like.device, dtype=like.dtype)
            offsets.append(steps.clamp(1 - n, n - 1) * step)  # no two tokens are further apart; padding has no features
            token, neighbour = torch.arange(a, device=like.device), torch.arange(-r, r + 1, device=like.device)
            place = token[:, None] - (neighbour[:, None, None] * a + token) + largest  # [2 r + 1, a, a]
            shape = [1] * 9
            shape[axis], shape[3 + axis], shape[6 + axis] = 2 * r + 1, a, a
            places.append(place.view(shape))
        values = bias(torch.stack(torch.meshgrid(*offsets, indexing="ij"), dim=-1)).to(like.dtype)  # [H, o_0, o_1, o_2]
        table = values[:, places[0], places[1], places[2]]  # [H, neighbours by axis, a_0, a_1, a_2, a_0, a_1, a_2]
        return table.flatten(7, 9).flatten(4, 6).flatten(1, 3).transpose(0, 1)[:, :, None, None, None]

    def chunks(self, max_tokens: int) -> tuple[TileChunk, ...]:
        """Return the chunks; see `Windows.chunks`."""
        return tile_chunks(self, max_tokens)

    def tiles(self, x: Tensor, pads: Pads) -> Tensor:
        """Return some rows of a grid's tokens, [B, H, n, c], as tiles [B, H, T_0, T_1, T_2, A, c] for products."""
        return to_tiles(x.unflatten(2, (-1, *self.grid.shape[1:])), self.tile, pads).to(self.products or x.dtype)

    def write_sums(self, chunk: TileChunk, table: Tensor, fq: Tensor, fk: Tensor, v: Tensor, out: Tensor) -> None:
        """Write the sums of a chunk; see `Windows.write_sums`."""
        queries = self.tiles(fq, chunk.query_pads)
        keys, values = (self.tiles(x, chunk.key_pads) for x in (fk, v))
        sums = v.new_zeros(*queries.shape[:-1], v.shape[-1])
        for decay, at in zip(table, self.neighbours(chunk.rows), strict=True):
            sums += (queries @ keys[at].mT).mul_(decay) @ values[at]
        out.copy_(from_tiles(sums, self.tile, chunk.query_pads))

    def gradients(
        self, chunk: TileChunk, table: Tensor, table_grad: Tensor, fq: Tensor, fk: Tensor, v: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of a chunk; see `Windows.gradients`."""
        dtype = fq.dtype
        queries, upstream = (self.tiles(x, chunk.query_pads) for x in (fq, g))
        keys, values = (self.tiles(x, chunk.key_pads) for x in (fk, v))
        dq, dk, dv = (torch.zeros_like(x, dtype=dtype) for x in (queries, keys, values))
        for decay, decay_grad, at in zip(table, table_grad, self.neighbours(chunk.rows), strict=True):
            scores, inner = queries @ keys[at].mT, upstream @ values[at].mT  # [B, H, T_0, T_1, T_2, A, A]
            decay_grad += (scores.to(dtype) * inner).sum((0, 2, 3, 4))[:, None, None, None]
            scores, inner = scores.mul_(decay), inner.mul_(decay)
            dq += inner @ keys[at]
            dk[at] += inner.mT @ queries
            dv[at] += scores.mT @ upstream
        pads = (chunk.query_pads, chunk.key_pads, chunk.key_pads)
        for_q, for_k, for_v = (from_tiles(x, self.tile, pad) for x, pad in zip((dq, dk, dv), pads, strict=True))
        return for_q, for_k, for_v


@memoized(256)
def make_tiles(grid: Grid, radius: Triple, products: torch.dtype | None = None) -> WholeTiles | None:
    """Return the tiles for a radius in tokens; None for grids of three axes, which would have too many neighbours."""
    axes = sum(n > 1 for n in grid.shape)
    if axes not in SIDES:
        return None
    tile, reach = [], []
    for n, r in zip(grid.shape, radius, strict=True):
        side = next((side for side in SIDES[axes] if side >= r), SIDES[axes][-1])
        tile.append(min(n, side))
        reach.append(0 if n <= side else math.ceil(min(r, n - 1) / side))
    return WholeTiles(grid, (tile[0], tile[1], tile[2]), (reach[0], reach[1], reach[2]), products)


@memoized(64)
def tile_chunks(windows: WholeTiles, max_tokens: int) -> tuple[TileChunk, ...]:
    """Return chunks of about `max_tokens` tokens, or of one row of tiles; one chunk where all tokens fit."""
    grid, tile, reach, counts = windows.grid, windows.tile, windows.reach, windows.counts
    (n0, n1, n2), a0 = grid.shape, tile[0]
    rows = counts[0] if max_tokens >= grid.tokens else max(1, max_tokens // (n1 * n2 * a0))
    halo = reach[0] * a0
    rest = [(r * a, r * a + -n % a) for n, a, r in zip((n1, n2), tile[1:], reach[1:], strict=True)]
    result = []
    for first in range(0, counts[0], rows):
        count = min(rows, counts[0] - first)
        start, stop = first * a0, (first + count) * a0
        low, high = max(0, start - halo), min(n0, stop + halo)
        result.append(
            TileChunk(
                rows=count,
                tokens=slice(start * n1 * n2, min(n0, stop) * n1 * n2),
                keys=slice(low * n1 * n2, high * n1 * n2),
                query_pads=((0, stop - min(n0, stop)), (0, -n1 % tile[1]), (0, -n2 % tile[2])),
                key_pads=((low - (start - halo), stop + halo - high), rest[0], rest[1]),
            )
        )
    return tuple(result)


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
