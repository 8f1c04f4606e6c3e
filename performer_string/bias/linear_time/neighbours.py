"""A bias of short range over a grid, for GPUs: each tile of tokens attends to itself and to the tiles around it.

It computes what `window` computes, in few and large operations. A window is made of whole tiles, so that each neighbour
is one batched product over all tiles, heads and samples. A CPU prefers windows that end at the radius.

    out_i = sum over neighbours p of sum_(j in the tile at p) lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j

Only the features of one chunk of tiles and of the keys around it are in memory. The backward pass computes them again.
Time is N W (m + d) for W tokens in a tile and its neighbours, memory N d. Source: the project's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.inputs import SumInputs
from performer_string.bias.linear_time.neighbour_tiles import (
    NeighbourChunk,
    Pads,
    Tiling,
    from_tiles,
    neighbour_chunks,
    to_tiles,
)
from performer_string.bias.linear_time.recompute import (
    FeatureSource,
    Recomputed,
    add_gradients_of_key_sums,
    chunk_tokens,
)
from performer_string.bias.linear_time.window import Bias
from performer_string.ops.layout import Grid
from performer_string.utils.autograd import first_order


def prefers_neighbours(device: torch.device) -> bool:
    """Return whether a device takes few large operations in less time than many small ones."""
    return device.type != "cpu"


def neighbour_table(bias: Bias, grid: Grid, tiling: Tiling, like: Tensor) -> Tensor:
    """Return lambda from each token of a tile to each token of each neighbour.

    Args:
        bias: function that returns lambda of offsets.
        grid: grid of the tokens.
        tiling: tiling of the grid.
        like: tensor of the device and type of the result.

    Returns:
        Factors lambda, [P, H, 1, 1, 1, A, A], for P neighbours in the order of `Tiling.neighbours`.
    """
    offsets, places = [], []
    for axis, (n, a, r, step) in enumerate(zip(grid.shape, tiling.tile, tiling.reach, grid.steps, strict=True)):
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


class _NeighbourSum(torch.autograd.Function):
    """out_i = sum_j table_ij (fq_i . fk_j) v_j over the neighbours, with one more column: fq_i . key_sums."""

    @staticmethod
    def forward(
        ctx: Any, source: FeatureSource, grid: Grid, tiling: Tiling, products: torch.dtype, table: Tensor, *tensors: Any
    ) -> Tensor:
        masked, q, k, v, key_sums, *learned = tensors  # of `SumInputs.tensors`
        ctx.save_for_backward(table, masked, q, k, v, key_sums, *learned)
        ctx.source, ctx.grid, ctx.tiling, ctx.products = source, grid, tiling, products
        out = v.new_zeros(*v.shape[:-1], v.shape[-1] + 1)
        for chunk in _chunks(q, source, grid, tiling):
            fq = source.queries(q[:, :, chunk.tokens])
            fk = source.keys(k[:, :, chunk.keys], None if masked is None else masked[:, :, chunk.keys])
            queries = _tiles(fq, chunk.query_pads, grid, tiling).to(products)
            keys, values = (_tiles(x, chunk.key_pads, grid, tiling).to(products) for x in (fk, v[:, :, chunk.keys]))
            tiles = v.new_zeros(*queries.shape[:-1], v.shape[-1])
            for decay, at in zip(table, tiling.neighbours(chunk.rows), strict=True):
                tiles += (queries @ keys[at].mT).mul_(decay) @ values[at]
            out[:, :, chunk.tokens, :-1] = from_tiles(tiles, tiling.tile, chunk.query_pads)
            total = fk.sum(2)[..., None] if key_sums is None else key_sums  # [B, H, m, 1 or d + 1]
            out[:, :, chunk.tokens, -total.shape[-1] :] += fq @ total
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        table, masked, q, k, v, key_sums, *learned = saved
        source, grid, tiling, products = ctx.source, ctx.grid, ctx.tiling, ctx.products
        q_grad, k_grad, v_grad, table_grad, *learned_grads = (torch.zeros_like(x) for x in (q, k, v, table, *learned))
        key_sums_grad = None if key_sums is None else torch.zeros_like(key_sums)
        for chunk in _chunks(q, source, grid, tiling):
            kept = Recomputed(source.queries, q[:, :, chunk.tokens])
            around = Recomputed(source.keys, k[:, :, chunk.keys], None if masked is None else masked[:, :, chunk.keys])
            g = gradient[:, :, chunk.tokens]
            fq, dout = (_tiles(x, chunk.query_pads, grid, tiling).to(products) for x in (kept.features, g[..., :-1]))
            fk, values = (
                _tiles(x, chunk.key_pads, grid, tiling).to(products) for x in (around.features, v[:, :, chunk.keys])
            )
            dq, dk, dv = (torch.zeros_like(x, dtype=q.dtype) for x in (fq, fk, values))
            for decay, decay_grad, at in zip(table, table_grad, tiling.neighbours(chunk.rows), strict=True):
                scores, inner = fq @ fk[at].mT, dout @ values[at].mT  # [B, H, T_0, T_1, T_2, A, A]
                decay_grad += (scores.to(q.dtype) * inner).sum((0, 2, 3, 4))[:, None, None, None]
                scores, inner = scores.mul_(decay), inner.mul_(decay)
                dq += inner @ fk[at]
                dk[at] += inner.mT @ fq
                dv[at] += scores.mT @ dout
            kept.grad = from_tiles(dq, tiling.tile, chunk.query_pads)
            around.grad = from_tiles(dk, tiling.tile, chunk.key_pads)
            add_gradients_of_key_sums(kept, around, g, key_sums, key_sums_grad)
            q_grad[:, :, chunk.tokens] = kept.backward(learned, learned_grads)
            k_grad[:, :, chunk.keys] += around.backward(learned, learned_grads)
            v_grad[:, :, chunk.keys] += from_tiles(dv, tiling.tile, chunk.key_pads)
        return None, None, None, None, table_grad, None, q_grad, k_grad, v_grad, key_sums_grad, *learned_grads


def _chunks(q: Tensor, source: FeatureSource, grid: Grid, tiling: Tiling) -> tuple[NeighbourChunk, ...]:
    """Return the chunks whose features of queries [B, H, N, .] are in memory together."""
    return neighbour_chunks(grid, tiling, chunk_tokens(q, source.size))


def _tiles(x: Tensor, pads: Pads, grid: Grid, tiling: Tiling) -> Tensor:
    """Return some rows of a grid's tokens, [B, H, n, c], as tiles [B, H, T_0, T_1, T_2, A, c]."""
    return to_tiles(x.unflatten(2, (-1, *grid.shape[1:])), tiling.tile, pads)


def neighbour_sum(inputs: SumInputs, bias: Bias, tiling: Tiling) -> Tensor:
    """Return `window_sum` with windows of whole tiles.

    Args:
        inputs, bias: see `window_sum`. Sums are in the type of the values, whatever `inputs.products` is.
        tiling: tiling of the grid, from `make_tiling` with the radius.

    Returns:
        Sums, [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    source, grid, v = inputs.source, inputs.grid, inputs.v
    table = neighbour_table(bias, grid, tiling, v)
    out: Tensor = _NeighbourSum.apply(source, grid, tiling, inputs.products or v.dtype, table, *inputs.tensors)
    return out
