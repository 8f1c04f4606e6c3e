"""A kernel of short range over a grid: sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j by tiles and their surroundings.

The tokens of a tile share one window, the tile and `radius` tokens around it; the products of features inside it are
exact, and what lies outside is left out. The features of one slab of tiles and of the keys around it are held at a
time, in the backward pass as well, where they are computed again: time N w^C (m + d), memory N d. Source: the project's
own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.recompute import FeatureSource, Recomputed, slab_size
from performer_string.bias.linear_time.tiles import band_of, bands, slabs, tile_of, together
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.autograd import first_order

Kernel = Callable[[Tensor], Tensor]  # offsets [..., 3] in patches -> lambda, [H, ...]


def window_table(kernel: Kernel, grid: Grid, radius: Triple, like: Tensor) -> Tensor:
    """lambda from each place of a tile to each of its window, [H, a_0, a_1, a_2, w_0, w_1, w_2], w = a + 2 radius.

    Each offset is asked for once, and none that no two tokens of the grid have.
    """
    axes, windows = [], []
    for n, a, r, step in zip(grid.shape, tile_of(grid), radius, grid.steps, strict=True):
        offsets = torch.arange(a + r - 1, -a - r, -1, device=like.device, dtype=like.dtype)  # the largest first
        axes.append(offsets.clamp(1 - n, n - 1) * step)
        windows.append(a + 2 * r)
    table = kernel(torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)).to(like.dtype)
    for c, w in enumerate(windows):
        table = table.unfold(c + 1, w, 1)  # from the last place of the tile to the first
    return table.flip(1, 2, 3)


class _WindowSum(torch.autograd.Function):
    """out_i = sum_(j in window) table_ij (fq_i . fk_j) v_j, and fq_i . sums; tiles by runs, in both directions.

    Features are those of a slab of whole rows of tiles, and of the keys around it. Windows are contiguous along the
    first axis: each band of the other two is copied once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        source: FeatureSource,
        grid: Grid,
        radius: Triple,
        masked: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor,
        sums: Tensor | None,
        *learned: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, table, masked, sums, *learned)
        ctx.source, ctx.grid, ctx.radius = source, grid, radius
        width = v.shape[-1]
        out = v.new_zeros(*v.shape[:-1], width + 1)
        for slab in slabs(grid, radius, _most(q, source)):
            here, around = slab.tokens, slab.around
            fq = source.queries(q[:, :, here])
            fk = source.keys(k[:, :, around], _part(masked, around))
            q_grid = fq.unflatten(2, slab.shape)
            k_grid, v_grid = (x.unflatten(2, slab.window) for x in (fk, v[:, :, around]))
            out_grid = out[:, :, here, :width].unflatten(2, slab.shape)
            for columns, runs in bands(grid, radius, slab):
                band_k, band_v = band_of(k_grid, columns), band_of(v_grid, columns)
                for run in runs:
                    decay, own = _flat(table[run.table]), run.tiles(q_grid)  # [H, A, W], [B, H, T, A, m]
                    keys, values = run.windows(band_k), run.windows(band_v)  # [B, H, T, W, m], [B, H, T, W, d]
                    found = v.new_empty(*own.shape[:-1], width)
                    for i, h in together(own):
                        found[i] = (own[i] @ keys[i].mT).mul_(decay[h]) @ values[i]
                    run.put(out_grid, found)
            far = fk.sum(2)[..., None] if sums is None else sums
            out[:, :, here, -far.shape[-1] :] += fq @ far
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, table, masked, sums, *learned = ctx.saved_tensors
        source, grid = ctx.source, ctx.grid
        q_grad, k_grad, v_grad, table_grad, *learned_grads = (torch.zeros_like(x) for x in (q, k, v, table, *learned))
        sums_grad = None if sums is None else torch.zeros_like(sums)
        for slab in slabs(grid, ctx.radius, _most(q, source)):
            here, around = slab.tokens, slab.around
            queries = Recomputed(source.queries, q[:, :, here])
            keys = Recomputed(source.keys, k[:, :, around], _part(masked, around))
            fq_grad, fk_grad = torch.empty_like(queries.features), torch.zeros_like(keys.features)
            q_grid, g_grid, dq_grid = (
                x.unflatten(2, slab.shape) for x in (queries.features, gradient[:, :, here, : v.shape[-1]], fq_grad)
            )
            k_grid, v_grid, dk_grid, dv_grid = (
                x.unflatten(2, slab.window) for x in (keys.features, v[:, :, around], fk_grad, v_grad[:, :, around])
            )
            for columns, runs in bands(grid, ctx.radius, slab):
                band_k, band_v = band_of(k_grid, columns), band_of(v_grid, columns)
                k_sum, v_sum = torch.zeros_like(band_k), torch.zeros_like(band_v)
                for run in runs:
                    decay, fq, g = _flat(table[run.table]), run.tiles(q_grid), run.tiles(g_grid)
                    fk, values = run.windows(band_k), run.windows(band_v)  # [B, H, T, W, m], [B, H, T, W, d]
                    dk, dv = run.windows(k_sum), run.windows(v_sum)
                    dq, decay_grad = torch.empty_like(fq), torch.zeros_like(decay)
                    for i, h in together(fq):
                        scores, inner = fq[i] @ fk[i].mT, g[i] @ values[i].mT  # [T or B, H, A, W]
                        decay_grad[h] += (scores * inner).sum(0)
                        inner, scores = inner.mul_(decay[h]), scores.mul_(decay[h])
                        dq[i] = inner @ fk[i]
                        _add_products(dk[i], inner.mT, fq[i], run.apart)
                        _add_products(dv[i], scores.mT, g[i], run.apart)
                    run.put(dq_grid, dq)
                    table_grad[run.table] += decay_grad.view_as(table[run.table])
                for whole, part_sum in ((dk_grid, k_sum), (dv_grid, v_sum)):
                    near = whole[:, :, :, columns[0], columns[1]]
                    near += part_sum.unflatten(3, near.shape[3:5])
            far = keys.features.sum(2)[..., None] if sums is None else sums
            g = gradient[:, :, here, -far.shape[-1] :]
            fq_grad += g @ far.mT
            far_grad = queries.features.mT @ g
            if sums_grad is None:
                fk_grad += far_grad.mT
            else:
                sums_grad += far_grad
            q_grad[:, :, here] = queries.back(fq_grad, learned, learned_grads)
            k_grad[:, :, around] += keys.back(fk_grad, learned, learned_grads)
        return None, None, None, None, q_grad, k_grad, v_grad, table_grad, sums_grad, *learned_grads


def _most(q: Tensor, source: FeatureSource) -> int:
    """Tokens of a slab: queries [B, H, N, .]."""
    return max(1, slab_size(q.device) // (q.shape[0] * q.shape[1] * source.size))


def _part(masked: Tensor | None, tokens: slice) -> Tensor | None:
    return None if masked is None else masked[:, :, tokens]


def _flat(table: Tensor) -> Tensor:
    """[H, a_0, a_1, a_2, w_0, w_1, w_2] -> [H, A, W]."""
    return table.flatten(4).flatten(1, 3)


def _add_products(windows: Tensor, a: Tensor, b: Tensor, apart: int) -> None:
    """windows += a @ b; of windows of one head [T, W, c], which overlap, those at once that do not."""
    if windows.ndim == 4:  # one tile of all heads, [B, H, W, c]
        windows += a @ b
    else:
        for first in range(min(apart, len(windows))):
            some = slice(first, None, apart)
            windows[some].baddbmm_(a[some], b[some])


def window_sum(
    source: FeatureSource,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    grid: Grid,
    radius: Triple,
    masked: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """sum over |p_i - p_j| <= radius of kernel(p_i - p_j) phi(q_i)^T phi(k_j) v_j and one column more, as
    `plan.decayed_sum` has it: [B, H, N, d + 1].

    Args:
        source: of the features of queries and keys.
        q, k: [B, H, N, .].
        v: [B, H, N, d].
        kernel: of offsets [..., 3] in patches, for each head, [H, ...]; differentiable in its own parameters.
        grid: of the tokens.
        radius: tokens along each axis, which every query sees at the least.
        masked: masked keys, [B, 1, N, 1].
        sums: [B, H, m, d + 1 or 1]; None for the sum over the keys, where all of them are one slab.
    """
    reach = tuple(min(r, n - 1) for r, n in zip(radius, grid.shape, strict=True))
    radius = (reach[0], reach[1], reach[2])
    table = window_table(kernel, grid, radius, v)
    out: Tensor = _WindowSum.apply(source, grid, radius, masked, q, k, v, table, sums, *source.learned)
    return out
