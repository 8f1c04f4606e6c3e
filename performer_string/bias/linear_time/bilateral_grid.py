"""A mixture of wide Gaussians over a grid: splat phi(k_j) v_j^T onto coarse nodes, blur, slice at the queries.

    lambda(r) = sum_g a_g exp(-|r|^2 / (2 s_g^2)) ~ sum_g a_g (hat B_g hat^T)(r)

Nodes lie t apart, `cell` tokens along each axis; hat weights interpolate between them. Splat and slice each widen the
kernel by the hats' variance f (1 - f) t^2 at the fraction f of a cell, t^2 (1 - 1 / cell^2) / 6 in the mean over the
tokens of a cell, so that the blur B_g is a Gaussian of the variance b^2 = s_g^2 - t^2 (1 - 1 / cell^2) / 3 and of the
amplitude s_g / b along each axis, which keeps the mass. cell = 1 is exact.

Heads go one by one; the features of some cells are held at a time, in the backward pass as well, where they and the
sums at the nodes are computed again. Source: the project's own; the bilateral grid is Chen, Paris and Durand (2007).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.nodes import (
    Blur,
    Cells,
    blur_gradients,
    blurred,
    from_cells,
    slice_across,
    slice_nodes,
    splat,
    to_cells,
)
from performer_string.bias.linear_time.recompute import FeatureSource, Recomputed, slab_size
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.autograd import first_order
from performer_string.utils.numerics import chunk_slices

REACH = 3.5  # of the blur, in standard deviations
LEAST_BLOCK = 16  # values at a time, or matrix products get slow
SUMS = {"cpu": 2**25, "cuda": 2**28}  # at the nodes, held at a time; features are made for each block of values


def cells_of(spacing: float, grid: Grid) -> Triple:
    """Tokens of a cell along each axis: the most whose nodes lie at most `spacing` patches apart, at least 1.

    Four cells along an axis cost next to nothing more than one, and keep the gradient to a very wide Gaussian's width.
    """
    c0, c1, c2 = (
        max(1, min(n // 4, math.floor(spacing / step + 1e-9))) for n, step in zip(grid.shape, grid.steps, strict=True)
    )
    return c0, c1, c2


def stencil(width: Tensor, reach: int, cell: int, step: float) -> Tensor:
    """The blur along one axis: a width [] -> its weights at -reach .. reach nodes, [2 reach + 1]."""
    spacing = cell * step
    variance = width.square() - spacing**2 * (1 - cell**-2) / 3
    offsets = torch.arange(-reach, reach + 1, device=width.device, dtype=width.dtype) * spacing
    return width / variance.sqrt() * (-offsets.square() / (2 * variance)).exp()


class _GridSum(torch.autograd.Function):
    """out = slice(B splat(fk, v), fq), and fq . sums, of one head: q, k, v [cells, B, S, .], sums [B, m, .]."""

    @staticmethod
    def forward(
        ctx: Any,
        source: FeatureSource,
        cells: Cells,
        axes: list[list[int]],
        masked: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sums: Tensor | None,
        *rest: Tensor,
    ) -> Tensor:
        ctx.source, ctx.cells, ctx.axes = source, cells, axes
        blurs, _ = _blurs(rest, axes)
        width = v.shape[-1]
        out = v.new_zeros(*v.shape[:-1], width + 1)
        for values in chunk_slices(width, _block(v, source, cells)):
            nodes, total = _splat_keys(source, cells, masked, k, v[..., values])
            far = total if sums is None else sums
            nodes = _blur_all(nodes, blurs)
            for own in _slabs(q, source, cells):
                features = source.queries(q[own])
                out[own][..., values] += slice_nodes(nodes, features, cells, own)
                if not values.start:  # once
                    out[own][..., -far.shape[-1] :] += features @ far
        ctx.save_for_backward(q, k, v, masked, far, *rest)
        ctx.given = sums is not None
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, masked, far, *rest = ctx.saved_tensors
        source, cells = ctx.source, ctx.cells
        blurs, learned = _blurs(rest, ctx.axes)
        q_grad, k_grad, v_grad, *learned_grads = (torch.zeros_like(x) for x in (q, k, v, *learned))
        blur_grads = [torch.zeros_like(weights) for blur in blurs for _, weights in blur]
        far_grad = torch.zeros_like(far)
        for values in chunk_slices(v.shape[-1], _block(v, source, cells)):
            nodes, _ = _splat_keys(source, cells, masked, k, v[..., values])
            smooth = _blur_all(nodes, blurs)
            smooth_grad = torch.zeros_like(nodes)
            for own in _slabs(q, source, cells):
                again, g = Recomputed(source.queries, q[own]), gradient[own][..., values].contiguous()
                splat(smooth_grad, again.features, g, cells, own)
                across = slice_across(smooth, g, cells, own)
                if not values.start:
                    g = gradient[own][..., -far.shape[-1] :]
                    across += g @ far.mT
                    far_grad += (again.features.mT @ g).sum(0)
                q_grad[own] += again.back(across, learned, learned_grads)
            del smooth
            found = [x for blur in blurs for x in blur_gradients(nodes, smooth_grad, blur)]
            for total, x in zip(blur_grads, found, strict=True):
                total += x
            nodes_grad = _blur_all(smooth_grad, blurs)
            for own in _slabs(q, source, cells):
                again = Recomputed(source.keys, k[own], None if masked is None else masked[own])
                v_grad[own][..., values] = slice_nodes(nodes_grad, again.features, cells, own)
                across = slice_across(nodes_grad, v[own][..., values], cells, own)
                if not ctx.given and not values.start:
                    across += far_grad.mT
                k_grad[own] += again.back(across, learned, learned_grads)
        sums_grad = far_grad if ctx.given else None
        return None, None, None, None, q_grad, k_grad, v_grad, sums_grad, *blur_grads, *learned_grads


def _blurs(rest: tuple[Tensor, ...] | list[Tensor], axes: list[list[int]]) -> tuple[list[Blur], list[Tensor]]:
    """The Gaussians' blurs, and what is learned, from both in a row."""
    left = list(rest)
    return [[(c, left.pop(0)) for c in own] for own in axes], left


def _blur_all(nodes: Tensor, blurs: list[Blur]) -> Tensor:
    total = blurred(nodes, blurs[0])
    for blur in blurs[1:]:
        total += blurred(nodes, blur)
    return total


def _splat_keys(
    source: FeatureSource, cells: Cells, masked: Tensor | None, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """The sums at the nodes of keys and a block of values, [x_0, x_1, x_2, B, m, e], and the sum of keys, [B, m, 1]."""
    nodes = v.new_zeros(*cells.nodes, v.shape[1], source.size, v.shape[-1])
    total = v.new_zeros(v.shape[1], source.size)
    for own in _slabs(k, source, cells):
        features = source.keys(k[own], None if masked is None else masked[own])
        total += features.sum((0, 2))
        splat(nodes, features, v[own], cells, own)
    return nodes, total[..., None]


def _slabs(x: Tensor, source: FeatureSource, cells: Cells) -> list[slice]:
    """Cells whose features are held together."""
    return chunk_slices(cells.total, max(1, slab_size(x.device) // (x.shape[1] * x.shape[2] * source.size)))


def _block(v: Tensor, source: FeatureSource, cells: Cells) -> int:
    """Values whose sums are held together."""
    nodes = cells.nodes[0] * cells.nodes[1] * cells.nodes[2]
    room = SUMS.get(v.device.type, SUMS["cpu"]) // (nodes * v.shape[1] * source.size)
    return v.shape[-1] if room >= v.shape[-1] else max(LEAST_BLOCK, room)


def grid_sum(
    source: FeatureSource,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    amplitudes: Tensor,
    widths: Tensor,
    grid: Grid,
    cell: Triple,
    masked: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j for a mixture of Gaussians, to a few per cent, and one column
    more, as `plan.decayed_sum` has it: [B, H, N, d + 1].

    Args:
        source: of the features of queries and keys.
        q, k: [B, H, N, .].
        v: [B, H, N, d].
        amplitudes, widths: a_g and s_g of each head, [H, G], widths in patches; nodes lie half a width apart or less.
        grid: of the tokens, two or more.
        cell: tokens from node to node along each axis.
        masked: masked keys, [B, 1, N, 1].
        sums: [B, H, m, d + 1 or 1]; None for the sum over the keys.
    """
    cells = cells_behind(grid, cell)
    shape, cell = cells.grid.shape, cells.cell
    if masked is None and any(n % s for n, s in zip(shape, cell, strict=True)):
        masked = torch.zeros(1, 1, grid.tokens, 1, dtype=torch.bool, device=v.device)
    if masked is not None:  # and what is no token at the edge
        masked = to_cells((~masked[:, 0]).to(torch.uint8), shape, cell) == 0  # [cells, B, S, 1]
    outs = []
    for h, (queries, keys, values) in enumerate(zip(*(x.unbind(1) for x in (q, k, v)), strict=True)):
        axes, weights = [], []
        for amplitude, width in zip(amplitudes[h].unbind(), widths[h].unbind(), strict=True):
            axes.append([c for c in range(3) if shape[c] > 1])
            for c in axes[-1]:
                step = cells.grid.steps[c]
                reach = min(cells.nodes[c] - 1, math.ceil(REACH * float(width.detach()) / (cell[c] * step)))
                weights.append(stencil(width, reach, cell[c], step) * (amplitude if c == axes[-1][0] else 1.0))
        own, far = source.of(h), None if sums is None else sums[:, h]
        tokens = [to_cells(x, shape, cell) for x in (queries, keys, values)]
        out = _GridSum.apply(own, cells, axes, masked, *tokens, far, *weights, *own.learned)
        outs.append(from_cells(out, shape, cell))
    return torch.stack(outs, dim=1)


def cells_behind(grid: Grid, cell: Triple) -> Cells:
    """The cells of a grid, its axes of one token put first, which leaves the order of the tokens as it is."""
    order = sorted(range(3), key=lambda c: grid.shape[c] > 1)
    a, b, c = order
    shape, steps = grid.shape, grid.steps
    turned = Grid((shape[a], shape[b], shape[c]), (steps[a], steps[b], steps[c]), grid.dim)
    return Cells(turned, (cell[a], cell[b], cell[c]))
