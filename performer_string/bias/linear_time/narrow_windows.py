"""Windows that end at the radius, over the tiles of `tiles`: many products of few tiles each, as a CPU prefers.

Windows are contiguous along the first axis. Their columns along the other two are copied once for each band.
"""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.bias.linear_time.tiles import Run, WindowChunk, batches, tile_shape, window_chunks
from performer_string.bias.linear_time.window import Bias, Windows
from performer_string.ops.layout import Grid, Triple


class NarrowWindows(Windows):
    """A window of each tile: the tile and `radius` tokens around it.

    Args:
        grid: grid of the tokens.
        radius: number of tokens along each axis that the window of every query contains at least.
    """

    def __init__(self, grid: Grid, radius: Triple):
        (n0, n1, n2), (r0, r1, r2) = grid.shape, radius
        self.grid, self.radius = grid, (min(r0, n0 - 1), min(r1, n1 - 1), min(r2, n2 - 1))

    def table(self, bias: Bias, like: Tensor) -> Tensor:
        """Return lambda from each token of a tile to each of its window; see `Windows.table`.

        Each offset between two tokens of the grid is evaluated once, and no other offset.

        Returns:
            Factors lambda, [H, a_0, a_1, a_2, w_0, w_1, w_2], w = a + 2 radius.
        """
        axes, windows, grid = [], [], self.grid
        for n, a, r, step in zip(grid.shape, tile_shape(grid), self.radius, grid.steps, strict=True):
            offsets = torch.arange(a + r - 1, -a - r, -1, device=like.device, dtype=like.dtype)  # the largest first
            axes.append(offsets.clamp(1 - n, n - 1) * step)
            windows.append(a + 2 * r)
        table = bias(torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)).to(like.dtype)
        for c, w in enumerate(windows):
            table = table.unfold(c + 1, w, 1)  # from the last place of the tile to the first
        return table.flip(1, 2, 3)

    def chunks(self, max_tokens: int) -> tuple[WindowChunk, ...]:
        """Return the chunks; see `Windows.chunks`."""
        return window_chunks(self.grid, self.radius, max_tokens)

    def write_sums(self, chunk: WindowChunk, table: Tensor, fq: Tensor, fk: Tensor, v: Tensor, out: Tensor) -> None:
        """Write the sums of a chunk; see `Windows.write_sums`."""
        fq, out = fq.unflatten(2, chunk.shape), out.unflatten(2, chunk.shape)
        fk, v = fk.unflatten(2, chunk.window_shape), v.unflatten(2, chunk.window_shape)
        for band in chunk.bands:
            k_band, v_band = band.window_rows(fk), band.window_rows(v)
            for run in band.runs:
                decay, queries = table_of(run, table), run.tiles(fq)  # [H, A, W], [B, H, T, A, m]
                keys, values = run.windows(k_band), run.windows(v_band)  # [B, H, T, W, m], [B, H, T, W, d]
                tiles = v.new_empty(*queries.shape[:-1], v.shape[-1])
                for i, h in batches(*queries.shape[:3]):
                    tiles[i] = (queries[i] @ keys[i].mT).mul_(decay[h]) @ values[i]
                run.put(out, tiles)

    def gradients(
        self, chunk: WindowChunk, table: Tensor, table_grad: Tensor, fq: Tensor, fk: Tensor, v: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of a chunk; see `Windows.gradients`."""
        all_dq, all_dk, all_dv = torch.empty_like(fq), torch.zeros_like(fk), torch.zeros_like(v)
        q_grid, g_grid, dq_grid = (x.unflatten(2, chunk.shape) for x in (fq, g, all_dq))
        k_grid, v_grid, dk_grid, dv_grid = (x.unflatten(2, chunk.window_shape) for x in (fk, v, all_dk, all_dv))
        for band in chunk.bands:
            k_band, v_band = band.window_rows(k_grid), band.window_rows(v_grid)
            dk_band, dv_band = torch.zeros_like(k_band), torch.zeros_like(v_band)
            for run in band.runs:
                decay, queries, upstream = table_of(run, table), run.tiles(q_grid), run.tiles(g_grid)
                keys, values = run.windows(k_band), run.windows(v_band)  # [B, H, T, W, m], [B, H, T, W, d]
                dk, dv = run.windows(dk_band), run.windows(dv_band)
                dq, decay_grad = torch.empty_like(queries), torch.zeros_like(decay)
                for i, h in batches(*queries.shape[:3]):
                    scores, inner = queries[i] @ keys[i].mT, upstream[i] @ values[i].mT  # [T or B, H, A, W]
                    decay_grad[h] += (scores * inner).sum(0)
                    inner, scores = inner.mul_(decay[h]), scores.mul_(decay[h])
                    dq[i] = inner @ keys[i]
                    add_products(dk[i], inner.mT, queries[i], run.disjoint_step)
                    add_products(dv[i], scores.mT, upstream[i], run.disjoint_step)
                run.put(dq_grid, dq)
                table_grad[run.table_index] += decay_grad.view_as(table[run.table_index])
            for grid_grad, band_grad in ((dk_grid, dk_band), (dv_grid, dv_band)):
                columns = grid_grad[:, :, :, band.columns[0], band.columns[1]]
                columns += band_grad.unflatten(3, columns.shape[3:5])
        return all_dq, all_dk, all_dv


def table_of(run: Run, table: Tensor) -> Tensor:
    """Return the part of the table for a run's tiles, [H, a_0, a_1, a_2, w_0, w_1, w_2] -> [H, A, W]."""
    return table[run.table_index].flatten(4).flatten(1, 3)


def add_products(windows: Tensor, a: Tensor, b: Tensor, disjoint_step: int) -> None:
    """Add a @ b to windows; those of one head, [T, W, c], overlap and are taken `disjoint_step` apart."""
    if windows.ndim == 4:  # one tile of all heads, [B, H, W, c]
        windows += a @ b
    else:
        for first in range(min(disjoint_step, len(windows))):
            disjoint = slice(first, None, disjoint_step)
            windows[disjoint].baddbmm_(a[disjoint], b[disjoint])
