"""A bias of short range over a grid: sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j by tiles and their windows.

The tokens of a tile share one window: the tile and `radius` tokens around it. Products of features inside it are exact,
and pairs outside it are left out. Only the features of one chunk of tiles and of the keys around it are in memory. The
backward pass computes them again. Time is N w^C (m + d), memory N d. Source: the project's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.inputs import SumInputs
from performer_string.bias.linear_time.recompute import (
    FeatureSource,
    Recomputed,
    add_gradients_of_key_sums,
    chunk_tokens,
)
from performer_string.bias.linear_time.tiles import Run, WindowChunk, batches, tile_shape, window_chunks
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.autograd import first_order

Bias = Callable[[Tensor], Tensor]  # offsets [..., 3] in patches -> lambda, [H, ...]


def window_table(bias: Bias, grid: Grid, radius: Triple, like: Tensor) -> Tensor:
    """Return lambda from each token of a tile to each of its window.

    Each offset between two tokens of the grid is evaluated once, and no other offset.

    Args:
        bias: function that returns lambda of offsets.
        grid: grid of the tokens.
        radius: number of tokens around a tile along each axis.
        like: tensor of the device and type of the result.

    Returns:
        Factors lambda, [H, a_0, a_1, a_2, w_0, w_1, w_2], w = a + 2 radius.
    """
    axes, windows = [], []
    for n, a, r, step in zip(grid.shape, tile_shape(grid), radius, grid.steps, strict=True):
        offsets = torch.arange(a + r - 1, -a - r, -1, device=like.device, dtype=like.dtype)  # the largest first
        axes.append(offsets.clamp(1 - n, n - 1) * step)
        windows.append(a + 2 * r)
    table = bias(torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)).to(like.dtype)
    for c, w in enumerate(windows):
        table = table.unfold(c + 1, w, 1)  # from the last place of the tile to the first
    return table.flip(1, 2, 3)


class _WindowSum(torch.autograd.Function):
    """out_i = sum_(j in window) table_ij (fq_i . fk_j) v_j, with one more column: fq_i . key_sums.

    Windows are contiguous along the first axis. Their columns along the other two are copied once for each band.
    """

    @staticmethod
    def forward(ctx: Any, source: FeatureSource, grid: Grid, radius: Triple, table: Tensor, *tensors: Any) -> Tensor:
        masked, q, k, v, key_sums, *learned = tensors  # of `SumInputs.tensors`
        ctx.save_for_backward(table, masked, q, k, v, key_sums, *learned)
        ctx.source, ctx.grid, ctx.radius = source, grid, radius
        width = v.shape[-1]
        out = v.new_zeros(*v.shape[:-1], width + 1)
        for chunk in _chunks(q, source, grid, radius):
            fq = source.queries(q[:, :, chunk.tokens])
            fk = source.keys(k[:, :, chunk.window], None if masked is None else masked[:, :, chunk.window])
            q_grid, out_grid = fq.unflatten(2, chunk.shape), out[:, :, chunk.tokens, :width].unflatten(2, chunk.shape)
            k_grid, v_grid = (x.unflatten(2, chunk.window_shape) for x in (fk, v[:, :, chunk.window]))
            for band in chunk.bands:
                k_band, v_band = band.window_rows(k_grid), band.window_rows(v_grid)
                for run in band.runs:
                    decay, queries = _table_of(run, table), run.tiles(q_grid)  # [H, A, W], [B, H, T, A, m]
                    keys, values = run.windows(k_band), run.windows(v_band)  # [B, H, T, W, m], [B, H, T, W, d]
                    tiles = v.new_empty(*queries.shape[:-1], width)
                    for i, h in batches(*queries.shape[:3]):
                        tiles[i] = (queries[i] @ keys[i].mT).mul_(decay[h]) @ values[i]
                    run.put(out_grid, tiles)
            total = fk.sum(2)[..., None] if key_sums is None else key_sums
            out[:, :, chunk.tokens, -total.shape[-1] :] += fq @ total
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        table, masked, q, k, v, key_sums, *learned = saved
        source, width = ctx.source, v.shape[-1]
        q_grad, k_grad, v_grad, table_grad, *learned_grads = (torch.zeros_like(x) for x in (q, k, v, table, *learned))
        key_sums_grad = None if key_sums is None else torch.zeros_like(key_sums)
        for chunk in _chunks(q, source, ctx.grid, ctx.radius):
            tokens, window = chunk.tokens, chunk.window
            queries = Recomputed(source.queries, q[:, :, tokens])
            keys = Recomputed(source.keys, k[:, :, window], None if masked is None else masked[:, :, window])
            queries.grad, keys.grad = torch.empty_like(queries.features), torch.zeros_like(keys.features)
            q_grid, g_grid, dq_grid = (
                x.unflatten(2, chunk.shape) for x in (queries.features, gradient[:, :, tokens, :width], queries.grad)
            )
            k_grid, v_grid, dk_grid, dv_grid = (
                x.unflatten(2, chunk.window_shape)
                for x in (keys.features, v[:, :, window], keys.grad, v_grad[:, :, window])
            )
            for band in chunk.bands:
                k_band, v_band = band.window_rows(k_grid), band.window_rows(v_grid)
                dk_band, dv_band = torch.zeros_like(k_band), torch.zeros_like(v_band)
                for run in band.runs:
                    decay, fq, g = _table_of(run, table), run.tiles(q_grid), run.tiles(g_grid)
                    fk, values = run.windows(k_band), run.windows(v_band)  # [B, H, T, W, m], [B, H, T, W, d]
                    dk, dv = run.windows(dk_band), run.windows(dv_band)
                    dq, decay_grad = torch.empty_like(fq), torch.zeros_like(decay)
                    for i, h in batches(*fq.shape[:3]):
                        scores, inner = fq[i] @ fk[i].mT, g[i] @ values[i].mT  # [T or B, H, A, W]
                        decay_grad[h] += (scores * inner).sum(0)
                        inner, scores = inner.mul_(decay[h]), scores.mul_(decay[h])
                        dq[i] = inner @ fk[i]
                        _add_products(dk[i], inner.mT, fq[i], run.disjoint_step)
                        _add_products(dv[i], scores.mT, g[i], run.disjoint_step)
                    run.put(dq_grid, dq)
                    table_grad[run.table_index] += decay_grad.view_as(table[run.table_index])
                for grid_grad, band_grad in ((dk_grid, dk_band), (dv_grid, dv_band)):
                    columns = grid_grad[:, :, :, band.columns[0], band.columns[1]]
                    columns += band_grad.unflatten(3, columns.shape[3:5])
            add_gradients_of_key_sums(queries, keys, gradient[:, :, tokens], key_sums, key_sums_grad)
            q_grad[:, :, tokens] = queries.backward(learned, learned_grads)
            k_grad[:, :, window] += keys.backward(learned, learned_grads)
        return None, None, None, table_grad, None, q_grad, k_grad, v_grad, key_sums_grad, *learned_grads


def _chunks(q: Tensor, source: FeatureSource, grid: Grid, radius: Triple) -> tuple[WindowChunk, ...]:
    """Return the chunks whose features of queries [B, H, N, .] are in memory together."""
    return window_chunks(grid, radius, chunk_tokens(q, source.size))


def _table_of(run: Run, table: Tensor) -> Tensor:
    """Return the part of the table for a run's tiles, [H, a_0, a_1, a_2, w_0, w_1, w_2] -> [H, A, W]."""
    return table[run.table_index].flatten(4).flatten(1, 3)


def _add_products(windows: Tensor, a: Tensor, b: Tensor, disjoint_step: int) -> None:
    """Add a @ b to windows; those of one head, [T, W, c], overlap and are taken `disjoint_step` apart."""
    if windows.ndim == 4:  # one tile of all heads, [B, H, W, c]
        windows += a @ b
    else:
        for first in range(min(disjoint_step, len(windows))):
            disjoint = slice(first, None, disjoint_step)
            windows[disjoint].baddbmm_(a[disjoint], b[disjoint])


def window_sum(inputs: SumInputs, bias: Bias, radius: Triple) -> Tensor:
    """Return sum over |p_i - p_j| <= radius of lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j, with one more column.

    Args:
        inputs: tokens and values; with `key_sums` where the features of all keys are more than one chunk.
        bias: function that returns lambda of offsets [..., 3] in patches, [H, ...]; differentiable in its parameters.
        radius: number of tokens along each axis that the window of every query contains at least.

    Returns:
        Sums, [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    n0, n1, n2 = inputs.grid.shape
    radius = (min(radius[0], n0 - 1), min(radius[1], n1 - 1), min(radius[2], n2 - 1))
    table = window_table(bias, inputs.grid, radius, inputs.v)
    out: Tensor = _WindowSum.apply(inputs.source, inputs.grid, radius, table, *inputs.tensors)
    return out
