"""Sums over the nodes of a coarse grid: splat tokens onto them, blur them along an axis, slice them at tokens.

Tokens come sorted by cells, [cells, B, S, .]. Nodes are [x_0, x_1, x_2, B, m, e], one more than cells along an axis.
The corners of a line of cells are slices of a line of nodes, so that nothing is gathered or scattered. On a grid the
hat weights of every cell are the same.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from performer_string.bias.linear_time.tiles import Span, spans
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.cache import memoized

BLUR_BLOCK = 32  # nodes that one product of a blur computes, where there are many more

Corner = tuple[int, int, slice]  # index of the nodes at one corner of a line of cells
Blur = list[tuple[int, Tensor]]  # axes, with symmetric weights [2 reach + 1] at -reach .. reach nodes


@dataclass(frozen=True)
class Cells:
    """The cells of a grid whose axes of more than one token come last, and their nodes.

    Attributes:
        grid: grid of the tokens.
        cell: number of tokens of a cell along each axis.
    """

    grid: Grid
    cell: Triple

    @cached_property
    def counts(self) -> Triple:
        """Number of cells along each axis."""
        c0, c1, c2 = (-(-n // s) for n, s in zip(self.grid.shape, self.cell, strict=True))
        return c0, c1, c2

    @cached_property
    def nodes(self) -> Triple:
        """Number of nodes along each axis: one more than cells, except along an axis of one token."""
        x0, x1, x2 = (c + (n > 1) for n, c in zip(self.grid.shape, self.counts, strict=True))
        return x0, x1, x2

    @cached_property
    def corners(self) -> list[Triple]:
        """Corners of a cell relative to its first one: 2^C of them over the axes of more than one token."""
        a, b, c = ((0, 1) if n > 1 else (0,) for n in self.grid.shape)
        return list(itertools.product(a, b, c))

    def hats(self, like: Tensor) -> Tensor:
        """Return the weight of each corner at each token of a cell, [2^C, S, 1]."""
        weights = like.new_ones(1, 1)
        for n, s in zip(self.grid.shape, self.cell, strict=True):
            upper = torch.arange(s, device=like.device, dtype=like.dtype) / s
            weights = torch.kron(weights, torch.stack([1 - upper, upper]) if n > 1 else like.new_ones(1, 1))
        return weights[..., None]


@memoized(64)
def lines(cells: Cells, start: int, stop: int) -> tuple[tuple[slice, tuple[Corner, ...]], ...]:
    """Return the lines along the last axis that the cells [start, stop) lie on.

    Returns:
        For each line its cells, counted from `start`, and the index of their nodes at each corner.
    """
    result, length = [], cells.counts[2]
    for line in range(start // length, -(-stop // length)):
        first, last = max(start, line * length), min(stop, (line + 1) * length)
        x, y = divmod(line, cells.counts[1])
        low, high = first - line * length, last - line * length
        corners = tuple((x + a, y + b, slice(low + c, high + c)) for a, b, c in cells.corners)
        result.append((slice(first - start, last - start), corners))
    return tuple(result)


def splat(nodes: Tensor, a: Tensor, b: Tensor, cells: Cells, part: slice) -> None:
    """Add sum over tokens of hat a b^T to the nodes, for tokens [cells, B, S, m] and [cells, B, S, e] of some cells."""
    weighted = [b * hat for hat in cells.hats(b)]
    for line, corners in lines(cells, part.start, part.stop):
        rows = a[line].flatten(0, 1).mT  # [n B, m, S]
        for corner, columns in zip(corners, weighted, strict=True):
            nodes[corner].flatten(0, 1).baddbmm_(rows, columns[line].flatten(0, 1))


def slice_nodes(nodes: Tensor, a: Tensor, cells: Cells, part: slice) -> Tensor:
    """Return sum over corners of hat a^T nodes, for tokens [cells, B, S, m] of some cells: [cells, B, S, e]."""
    hats = cells.hats(a)
    out = a.new_zeros(*a.shape[:-1], nodes.shape[-1])
    for line, corners in lines(cells, part.start, part.stop):
        rows, sums = a[line].flatten(0, 1), out[line].flatten(0, 1)
        for corner, hat in zip(corners, hats, strict=True):
            sums.addcmul_(torch.bmm(rows, nodes[corner].flatten(0, 1)), hat)
    return out


def slice_transposed(nodes: Tensor, b: Tensor, cells: Cells, part: slice) -> Tensor:
    """Return sum over corners of hat nodes b, for tokens [cells, B, S, e] of some cells: [cells, B, S, m]."""
    out = b.new_zeros(*b.shape[:-1], nodes.shape[-2])
    weighted = [b * hat for hat in cells.hats(b)]
    for line, corners in lines(cells, part.start, part.stop):
        sums = out[line].flatten(0, 1)
        for corner, columns in zip(corners, weighted, strict=True):
            sums.baddbmm_(columns[line].flatten(0, 1), nodes[corner].flatten(0, 1).mT)
    return out


def apply_blur(nodes: Tensor, blur: Blur) -> Tensor:
    """Return the nodes convolved along each axis; the operation is its own adjoint."""
    for axis, weights in blur:
        x, parts = _with_axis_second(nodes, axis), []
        for span in _blur_blocks(x.shape[1], weights):
            index, inside = _banded_index(weights, span)
            parts.append(torch.where(inside, weights[index], 0.0) @ x[:, span.low : span.high])  # [before, 32, after]
        nodes = (torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]).view(nodes.shape)
    return nodes


def blur_gradients(nodes: Tensor, gradient: Tensor, blur: Blur) -> list[Tensor]:
    """Return the gradients of each axis' weights from the gradient of `apply_blur(nodes, blur)`."""
    gradients = []
    for axis, weights in blur:
        others = [(c, w) for c, w in blur if c != axis]
        x, g = _with_axis_second(apply_blur(nodes, others), axis), _with_axis_second(gradient, axis)
        total = torch.zeros_like(weights)
        for span in _blur_blocks(x.shape[1], weights):
            index, inside = _banded_index(weights, span)
            products = (g[:, span.start : span.stop] @ x[:, span.low : span.high].mT).sum(0)
            total.index_add_(0, index.flatten(), torch.where(inside, products, 0.0).flatten())
        gradients.append(total)
    return gradients


def _blur_blocks(nodes: int, weights: Tensor) -> tuple[Span, ...]:
    """Return the nodes [start, stop) computed together, and the nodes [low, high) that they are computed from."""
    reach = len(weights) // 2
    return spans(nodes, nodes if nodes <= BLUR_BLOCK + 2 * reach else BLUR_BLOCK, reach)


def _with_axis_second(nodes: Tensor, axis: int) -> Tensor:
    """Return the nodes as matrices, [x_0, x_1, x_2, B, m, e] -> [before, x_axis, after]."""
    nodes = nodes.flatten(axis + 1)
    return nodes.flatten(0, axis - 1) if axis else nodes[None]


def _banded_index(weights: Tensor, span: Span) -> tuple[Tensor, Tensor]:
    """Return the index of the weight from each node of [low, high) to each of [start, stop), and whether it exists."""
    rows = torch.arange(span.start, span.stop, device=weights.device)[:, None]
    index = torch.arange(span.low, span.high, device=weights.device) - rows + len(weights) // 2
    return index.clamp(0, len(weights) - 1), (index >= 0) & (index < len(weights))
