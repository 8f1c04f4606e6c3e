"""A mixture of wide Gaussians over a grid: splat phi(k_j) v_j^T onto coarse nodes, blur, slice at the queries.

    lambda(r) = sum_g a_g exp(-|r|^2 / (2 s_g^2)) ~ sum_g a_g (hat B_g hat^T)(r)

Nodes lie t apart, `cell` tokens along each axis; hat weights interpolate between them. Splat and slice each widen the
Gaussian by the hats' variance f (1 - f) t^2 at the fraction f of a cell. Its mean over the tokens of a cell is
t^2 (1 - 1 / cell^2) / 6. The blur B_g is therefore a Gaussian of the variance b^2 = s_g^2 - t^2 (1 - 1 / cell^2) / 3.
Its amplitude is s_g / b along each axis, which keeps the mass. cell = 1 is exact.

Heads are computed one by one. Only the features of some cells are in memory. The backward pass computes them, and the
sums at the nodes, again. Source: the project's own; the bilateral grid is Chen, Paris and Durand (2007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.inputs import SumInputs, from_cells, to_cells
from performer_string.bias.linear_time.nodes import (
    Blur,
    Cells,
    apply_blur,
    blur_gradients,
    slice_nodes,
    slice_transposed,
    splat,
)
from performer_string.bias.linear_time.recompute import FeatureSource, Recomputed, chunk_features
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.autograd import first_order
from performer_string.utils.cache import memoized
from performer_string.utils.numerics import chunk_slices

BLUR_REACH = 3.5  # reach of a blur, in standard deviations
MIN_VALUE_BLOCK = 16  # values at a time; matrix products of fewer are slow
NODE_SUMS = {"cpu": 2**25, "cuda": 2**28}  # numbers at the nodes in memory; each block of values computes features anew


def cell_shape(spacing: float, grid: Grid) -> Triple:
    """Return the number of tokens of a cell along each axis, the largest with nodes at most `spacing` patches apart.

    It is at least 1 and at most a quarter of the axis. Four cells cost hardly more than one, and keep the gradient of
    the width of a very wide Gaussian.
    """
    c0, c1, c2 = [
        max(1, min(n // 4, math.floor(spacing / step + 1e-9))) for n, step in zip(grid.shape, grid.steps, strict=True)
    ]
    return c0, c1, c2


def order_of_axes(grid: Grid) -> list[int]:
    """Return the axes of a grid, with the axes of one token first."""
    return sorted(range(3), key=lambda axis: grid.shape[axis] > 1)


def by_axis(widths: Tensor, dim: int) -> Tensor:
    """Return widths for each of C axes, [H, G, C], from widths for each axis or for all axes together, [H, G]."""
    return widths[..., None].expand(-1, -1, dim) if widths.ndim == 2 else widths


@memoized(256)
def make_cells(grid: Grid, cell: Triple) -> Cells:
    """Return the cells of a grid with its axes of one token first; the order of the tokens stays the same."""
    a, b, c = order_of_axes(grid)
    shape, steps = grid.shape, grid.steps
    sorted_grid = Grid((shape[a], shape[b], shape[c]), (steps[a], steps[b], steps[c]), grid.dim)
    return Cells(sorted_grid, (cell[a], cell[b], cell[c]))


def blur_weights(width: Tensor, reach: int, cell: int, step: float) -> Tensor:
    """Return the blur along one axis: a width [] -> weights at -reach .. reach nodes, [2 reach + 1]."""
    spacing = cell * step
    variance = width.square() - spacing**2 * (1 - cell**-2) / 3
    offsets = torch.arange(-reach, reach + 1, device=width.device, dtype=width.dtype) * spacing
    return width / variance.sqrt() * (-offsets.square() / (2 * variance)).exp()


class _GridSum(torch.autograd.Function):
    """out = slice(B splat(fk, v), fq) of one head, with one more column: fq . key_sums.

    Shapes: q, k, v [cells, B, S, .], key_sums [B, m, .].
    """

    @staticmethod
    def forward(ctx: Any, source: FeatureSource, cells: Cells, axes: list[int], *tensors: Any) -> Tensor:
        masked, q, k, v, key_sums, *learned_and_weights = tensors  # of `SumInputs.tensors`, and the blurs' weights
        ctx.source, ctx.cells, ctx.axes, ctx.has_key_sums = source, cells, axes, key_sums is not None
        blurs = _blurs(learned_and_weights[len(source.learned) :], axes)
        width = v.shape[-1]
        out = v.new_zeros(*v.shape[:-1], width + 1)
        for values in chunk_slices(width, _value_block(v, source, cells)):
            nodes, total = _splat_keys(source, cells, masked, k, v[..., values])
            total = total if key_sums is None else key_sums
            nodes = _apply_blurs(nodes, blurs)
            for part in _parts(q, source, cells):
                features = source.queries(q[part])
                out[part][..., values] += slice_nodes(nodes, features, cells, part)
                if values.start == 0:  # the last column does not depend on the values
                    out[part][..., -total.shape[-1] :] += features @ total
        ctx.save_for_backward(masked, q, k, v, total, *learned_and_weights)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        masked, q, k, v, total, *learned_and_weights = saved
        source, cells, count = ctx.source, ctx.cells, len(ctx.source.learned)
        learned, blurs = learned_and_weights[:count], _blurs(learned_and_weights[count:], ctx.axes)
        q_grad, k_grad, v_grad, *learned_grads = (torch.zeros_like(x) for x in (q, k, v, *learned))
        blur_grads = [torch.zeros_like(weights) for blur in blurs for _, weights in blur]
        total_grad = torch.zeros_like(total)
        for values in chunk_slices(v.shape[-1], _value_block(v, source, cells)):
            nodes, _ = _splat_keys(source, cells, masked, k, v[..., values])
            blurred = _apply_blurs(nodes, blurs)
            blurred_grad = torch.zeros_like(nodes)
            for part in _parts(q, source, cells):
                queries, g = Recomputed(source.queries, q[part]), gradient[part][..., values].contiguous()
                splat(blurred_grad, queries.features, g, cells, part)
                queries.grad = slice_transposed(blurred, g, cells, part)
                if values.start == 0:
                    g = gradient[part][..., -total.shape[-1] :]
                    queries.grad += g @ total.mT
                    total_grad += (queries.features.mT @ g).sum(0)
                q_grad[part] += queries.backward(learned, learned_grads)
            del blurred
            gradients = [x for blur in blurs for x in blur_gradients(nodes, blurred_grad, blur)]
            for blur_grad, x in zip(blur_grads, gradients, strict=True):
                blur_grad += x
            nodes_grad = _apply_blurs(blurred_grad, blurs)
            for part in _parts(q, source, cells):
                keys = Recomputed(source.keys, k[part], None if masked is None else masked[part])
                v_grad[part][..., values] = slice_nodes(nodes_grad, keys.features, cells, part)
                keys.grad = slice_transposed(nodes_grad, v[part][..., values], cells, part)
                if not ctx.has_key_sums and values.start == 0:
                    keys.grad += total_grad.mT
                k_grad[part] += keys.backward(learned, learned_grads)
        key_sums_grad = total_grad if ctx.has_key_sums else None
        return None, None, None, None, q_grad, k_grad, v_grad, key_sums_grad, *learned_grads, *blur_grads


def _blurs(weights: Sequence[Tensor], axes: list[int]) -> list[Blur]:
    """Return the blur of each Gaussian from all weights in a row, one tensor for each Gaussian and axis."""
    count = len(axes)
    return [list(zip(axes, weights[i : i + count], strict=True)) for i in range(0, len(weights), count)]


def _apply_blurs(nodes: Tensor, blurs: list[Blur]) -> Tensor:
    """Return the sum of all Gaussians' blurs of the nodes."""
    total = apply_blur(nodes, blurs[0])
    for blur in blurs[1:]:
        total += apply_blur(nodes, blur)
    return total


def _splat_keys(
    source: FeatureSource, cells: Cells, masked: Tensor | None, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums of keys and a block of values at the nodes, [x_0, x_1, x_2, B, m, e], and of keys, [B, m, 1]."""
    nodes = v.new_zeros(*cells.nodes, v.shape[1], source.size, v.shape[-1])
    total = v.new_zeros(v.shape[1], source.size)
    for part in _parts(k, source, cells):
        features = source.keys(k[part], None if masked is None else masked[part])
        total += features.sum((0, 2))
        splat(nodes, features, v[part], cells, part)
    return nodes, total[..., None]


def _parts(x: Tensor, source: FeatureSource, cells: Cells) -> list[slice]:
    """Return the cells whose features are in memory together."""
    size = max(1, chunk_features(x.device) // (x.shape[1] * x.shape[2] * source.size))
    return chunk_slices(math.prod(cells.counts), size)


def _value_block(v: Tensor, source: FeatureSource, cells: Cells) -> int:
    """Return the number of values whose sums at the nodes are in memory together."""
    room = NODE_SUMS.get(v.device.type, NODE_SUMS["cpu"]) // (math.prod(cells.nodes) * v.shape[1] * source.size)
    return v.shape[-1] if room >= v.shape[-1] else max(MIN_VALUE_BLOCK, room)


def grid_sum(inputs: SumInputs, amplitudes: Tensor, widths: Tensor, cell: Triple) -> Tensor:
    """Return sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j of a mixture of Gaussians, with one more column.

    Args:
        inputs: tokens and values, on a grid of two tokens or more.
        amplitudes, widths: amplitudes a_g, [H, G], and widths s_g in patches, [H, G], or [H, G, C] with one for each
            axis. The error is a few per cent where nodes lie at most half a width apart.
        cell: number of tokens from node to node along each axis.

    Returns:
        Sums, [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    grid, cells = inputs.grid, make_cells(inputs.grid, cell)
    shape, steps, cell = cells.grid.shape, cells.grid.steps, cells.cell
    axes, outs, order = [c for c in range(3) if shape[c] > 1], [], order_of_axes(grid)
    widths = by_axis(widths, grid.dim)
    lengths = widths.detach().tolist()
    full = all(n % s == 0 for n, s in zip(shape, cell, strict=True))
    for h, head in enumerate(inputs.each_head(partial(to_cells, shape=shape, cell=cell), full)):
        weights = []
        for amplitude, width, length in zip(amplitudes[h].unbind(), widths[h].unbind(), lengths[h], strict=True):
            for c in axes:
                reach = min(cells.nodes[c] - 1, math.ceil(BLUR_REACH * length[order[c]] / (cell[c] * steps[c])))
                factor = amplitude if c == axes[0] else 1.0
                weights.append(blur_weights(width[order[c]], reach, cell[c], steps[c]) * factor)
        out = _GridSum.apply(head.source, cells, axes, *head.tensors, *weights)
        outs.append(from_cells(out, shape, cell))
    return torch.stack(outs, dim=1)
