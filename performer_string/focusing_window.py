"""A kernel of short range over a grid: sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j by tiles and their surroundings.

The tokens of a tile share one window, the tile and `radius` tokens around it; the products of features inside it are
exact, and what lies outside is left out. One tile's window is held at a time, in the backward pass as well, where it
is computed again: time N w^C (m + d), memory N (m + d). Source: the project's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from performer_string.lattice import Lattice, Triple

TILE_TOKENS = 64  # enough rows for a matrix product to run at full speed; more would only widen the window

Kernel = Callable[[Tensor], Tensor]  # offsets [..., 3] in patches -> lambda, [H, ...]


def tile_of(lattice: Lattice) -> Triple:
    """The tile: about `TILE_TOKENS` tokens, a cube in as many axes as the grid has."""
    tile, left = [1, 1, 1], TILE_TOKENS
    long = sorted((c for c in range(3) if lattice.shape[c] > 1), key=lambda c: lattice.shape[c])
    for i, c in enumerate(long):
        tile[c] = min(lattice.shape[c], max(1, round(left ** (1 / (len(long) - i)))))
        left = max(1, left // tile[c])
    return tile[0], tile[1], tile[2]


def products(lattice: Lattice, radius: Triple) -> float:
    """How many products phi(q_i)^T phi(k_j) the windows take."""
    total = 1.0
    for n, a, r in zip(lattice.shape, tile_of(lattice), radius, strict=True):
        total *= sum((stop - start) * (high - low) for start, stop, low, high in spans(n, a, r))
    return total


def spans(n: int, tile: int, radius: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, stop) of each tile along an axis of n tokens, and (low, high) of its window."""
    for start in range(0, n, tile):
        stop = min(start + tile, n)
        yield start, stop, max(0, start - radius), min(n, stop + radius)


def window_table(kernel: Kernel, lattice: Lattice, radius: Triple, like: Tensor) -> Tensor:
    """lambda from each place of a tile to each of its window, [H, a_0, a_1, a_2, w_0, w_1, w_2], w = a + 2 radius."""
    difference = []
    for c, (a, r, step) in enumerate(zip(tile_of(lattice), radius, lattice.steps, strict=True)):
        here = torch.arange(a, device=like.device, dtype=like.dtype)
        there = torch.arange(-r, a + r, device=like.device, dtype=like.dtype)
        view = [1] * 6
        view[c], view[c + 3] = len(here), len(there)
        difference.append(((here[:, None] - there) * step).view(view))  # [.., a_c, .., w_c, ..]
    return kernel(torch.stack(torch.broadcast_tensors(*difference), dim=-1)).to(like.dtype)


class _WindowSum(torch.autograd.Function):
    """out_i = sum_(j in window) table_ij (fq_i . fk_j) v_j; one tile at a time, in both directions.

    Windows are contiguous along the first axis: each band of the other two is copied once.
    """

    @staticmethod
    def forward(ctx: Any, fq: Tensor, fk: Tensor, v: Tensor, table: Tensor, lattice: Lattice, radius: Triple) -> Tensor:
        ctx.save_for_backward(fq, fk, v, table)
        ctx.lattice, ctx.radius = lattice, radius
        q_grid, k_grid, v_grid = (x.unflatten(2, lattice.shape) for x in (fq, fk, v))
        out = v.new_empty(*fq.shape[:-1], v.shape[-1]).unflatten(2, lattice.shape)
        for columns, tiles in _bands(lattice, radius):
            band_k, band_v = _band(k_grid, columns), _band(v_grid, columns)
            for tile, rows, part in tiles:
                decay = table[part]
                weights = _flat(q_grid[tile]) @ _rows(band_k, rows).mT  # [B, H, T, W]
                _as_table(weights, decay).mul_(decay)
                out[tile] = (weights @ _rows(band_v, rows)).unflatten(2, out[tile].shape[2:5])
        return out.flatten(2, 4)  # [B, H, N, d]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        fq, fk, v, table = ctx.saved_tensors
        lattice = ctx.lattice
        q_grid, k_grid, v_grid, g_grid = (x.unflatten(2, lattice.shape) for x in (fq, fk, v, grad))
        q_grad, k_grad, v_grad = (
            torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q_grid, k_grid, v_grid)
        )
        table_grad = torch.zeros_like(table)
        for columns, tiles in _bands(lattice, ctx.radius):
            band_k, band_v = _band(k_grid, columns), _band(v_grid, columns)
            k_sum, v_sum = torch.zeros_like(band_k), torch.zeros_like(band_v)
            for tile, rows, part in tiles:
                decay = table[part]
                q, g = _flat(q_grid[tile]), _flat(g_grid[tile])  # [B, H, T, m], [B, H, T, d]
                keys, values = _rows(band_k, rows), _rows(band_v, rows)  # [B, H, W, m], [B, H, W, d]
                scores, inner = q @ keys.mT, g @ values.mT  # [B, H, T, W]
                table_grad[part] += _as_table(scores * inner, decay).sum(0)
                _as_table(inner, decay).mul_(decay)
                _as_table(scores, decay).mul_(decay)
                q_grad[tile] = (inner @ keys).unflatten(2, q_grad[tile].shape[2:5])
                _rows(k_sum, rows).add_(inner.mT @ q)
                _rows(v_sum, rows).add_(scores.mT @ g)
            for whole, part_sum in ((k_grad, k_sum), (v_grad, v_sum)):
                around = whole[:, :, :, columns[0], columns[1]]
                around += part_sum.unflatten(3, around.shape[3:5])
        return q_grad.flatten(2, 4), k_grad.flatten(2, 4), v_grad.flatten(2, 4), table_grad, None, None


Index = tuple[slice, ...]


def _bands(lattice: Lattice, radius: Triple) -> Iterator[tuple[Index, list[tuple[Index, slice, Index]]]]:
    """For each band: its window along the last two axes, and its tiles.

    A tile is its index into the grid [B, H, n_0, n_1, n_2, c], its window's rows of the band, and its index into the
    table.
    """
    axes = [list(spans(n, a, r)) for n, a, r in zip(lattice.shape, tile_of(lattice), radius, strict=True)]
    everything = slice(None)
    for span1 in axes[1]:
        for span2 in axes[2]:
            tiles = []
            for span0 in axes[0]:
                three = (span0, span1, span2)
                tile = (everything, everything, *(slice(start, stop) for start, stop, _, _ in three))
                here = [slice(0, stop - start) for start, stop, _, _ in three]
                window = [
                    slice(low - start + r, high - start + r)
                    for (start, _, low, high), r in zip(three, radius, strict=True)
                ]
                tiles.append((tile, slice(span0[2], span0[3]), (everything, *here, *window)))
            yield (slice(*span1[2:]), slice(*span2[2:])), tiles


def _band(x: Tensor, columns: Index) -> Tensor:
    """[B, H, n_0, n_1, n_2, c] -> the window's part of the last two axes, [B, H, n_0, w_1 w_2, c]."""
    return x[(slice(None), slice(None), slice(None), *columns)].flatten(3, 4).contiguous()


def _rows(band: Tensor, rows: slice) -> Tensor:
    """[B, H, n_0, w_1 w_2, c] -> [B, H, W, c], a view."""
    part = band[:, :, rows]
    return part.view(*part.shape[:2], part.shape[2] * part.shape[3], part.shape[4])


def _flat(tile: Tensor) -> Tensor:
    return tile.flatten(2, 4)  # [B, H, a_0, a_1, a_2, c] -> [B, H, T, c]


def _as_table(weights: Tensor, decay: Tensor) -> Tensor:
    """[B, H, T, W] seen as [B, H, a_0, a_1, a_2, w_0, w_1, w_2]."""
    return weights.view(len(weights), *decay.shape)


def window_sum(fq: Tensor, fk: Tensor, v: Tensor, kernel: Kernel, lattice: Lattice, radius: Triple) -> Tensor:
    """sum over |p_i - p_j| <= radius of kernel(p_i - p_j) phi(q_i)^T phi(k_j) v_j, [B, H, N, d].

    Args:
        fq, fk: features [B, H, N, m].
        v: [B, H, N, d].
        kernel: of offsets [..., 3] in patches, for each head, [H, ...]; differentiable in its own parameters.
        lattice: of the tokens.
        radius: tokens along each axis, which every query sees at the least.
    """
    reach = tuple(min(r, n - 1) for r, n in zip(radius, lattice.shape, strict=True))
    table = window_table(kernel, lattice, (reach[0], reach[1], reach[2]), fq)
    out: Tensor = _WindowSum.apply(fq, fk, v, table, lattice, reach)
    return out


def radius_in_tokens(reach: float, lattice: Lattice) -> Triple:
    """A reach in patches as whole tokens along each axis, no further than the grid."""
    r0, r1, r2 = (
        min(n - 1, math.ceil(reach / step - 0.01)) for n, step in zip(lattice.shape, lattice.steps, strict=True)
    )
    return r0, r1, r2
