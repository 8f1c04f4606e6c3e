"""Sums over the nodes of a coarse grid: splat tokens onto them, slice them at tokens, blur them along an axis.

Tokens come in cells, [cells, B, S, .], and nodes as [x_0, x_1, x_2, B, m, e], one more than cells along an axis. The
corners of a line of cells are slices of a line of nodes, so that nothing is gathered or scattered. On a grid the hat
weights of every cell are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.bias.linear_time.tiles import spans
from performer_string.ops.layout import Grid, Triple

BLOCK = 32  # nodes that a blur computes together, where there are many more


@dataclass(frozen=True)
class Cells:
    """The cells of a grid whose axes of more than one token come last, and their nodes.

    Attributes:
        grid: of the tokens.
        cell: tokens of a cell along each axis.
    """

    grid: Grid
    cell: Triple

    @cached_property
    def counts(self) -> Triple:
        """Cells along each axis."""
        c0, c1, c2 = (-(-n // s) for n, s in zip(self.grid.shape, self.cell, strict=True))
        return c0, c1, c2

    @cached_property
    def nodes(self) -> Triple:
        """Nodes along each axis: one more than cells, except along an axis of one token."""
        x0, x1, x2 = (c + (n > 1) for n, c in zip(self.grid.shape, self.counts, strict=True))
        return x0, x1, x2

    @cached_property
    def total(self) -> int:
        return self.counts[0] * self.counts[1] * self.counts[2]

    @cached_property
    def corners(self) -> list[Triple]:
        """Of a cell, the first one at 0; P = 2^C of them over the axes of more than one token."""
        a, b, c = ((0, 1) if n > 1 else (0,) for n in self.grid.shape)
        return list(itertools.product(a, b, c))

    def hats(self, like: Tensor) -> Tensor:
        """Weights of each corner at each token of a cell, [P, S, 1]."""
        weights = like.new_ones(1, 1)
        for n, s in zip(self.grid.shape, self.cell, strict=True):
            upper = torch.arange(s, device=like.device, dtype=like.dtype) / s
            weights = torch.kron(weights, torch.stack([1 - upper, upper]) if n > 1 else like.new_ones(1, 1))
        return weights[..., None]

    def lines(self, cells: slice) -> Iterator[tuple[slice, list[tuple[int, int, slice]]]]:
        """For each line of these cells along the last axis: where it is among them, and its nodes at each corner."""
        long = self.counts[2]
        for line in range(cells.start // long, -(-cells.stop // long)):
            first, last = max(cells.start, line * long), min(cells.stop, (line + 1) * long)
            x, y = divmod(line, self.counts[1])
            low, high = first - line * long, last - line * long
            corners = [(x + a, y + b, slice(low + c, high + c)) for a, b, c in self.corners]
            yield slice(first - cells.start, last - cells.start), corners


def splat(nodes: Tensor, a: Tensor, b: Tensor, cells: Cells, own: slice) -> None:
    """nodes += sum over tokens of hat a b^T: tokens [cells, B, S, m] and [cells, B, S, e] of the cells `own`."""
    spread = [b * hat for hat in cells.hats(b)]
    for part, corners in cells.lines(own):
        rows = a[part].flatten(0, 1).mT  # [n B, m, S]
        for corner, weighted in zip(corners, spread, strict=True):
            nodes[corner].flatten(0, 1).baddbmm_(rows, weighted[part].flatten(0, 1))


def slice_nodes(nodes: Tensor, a: Tensor, cells: Cells, own: slice) -> Tensor:
    """sum over corners of hat a^T nodes: tokens [cells, B, S, m] -> [cells, B, S, e]."""
    hats = cells.hats(a)
    out = a.new_zeros(*a.shape[:-1], nodes.shape[-1])
    for part, corners in cells.lines(own):
        rows, sums = a[part].flatten(0, 1), out[part].flatten(0, 1)
        for corner, hat in zip(corners, hats, strict=True):
            sums.addcmul_(torch.bmm(rows, nodes[corner].flatten(0, 1)), hat)
    return out


def slice_across(nodes: Tensor, b: Tensor, cells: Cells, own: slice) -> Tensor:
    """sum over corners of hat nodes b: tokens [cells, B, S, e] -> [cells, B, S, m]."""
    out = b.new_zeros(*b.shape[:-1], nodes.shape[-2])
    spread = [b * hat for hat in cells.hats(b)]
    for part, corners in cells.lines(own):
        sums = out[part].flatten(0, 1)
        for corner, weighted in zip(corners, spread, strict=True):
            sums.baddbmm_(weighted[part].flatten(0, 1), nodes[corner].flatten(0, 1).mT)
    return out


Blur = list[tuple[int, Tensor]]  # axes, with weights [2 reach + 1] at -reach .. reach nodes, the same on both sides


def blurred(nodes: Tensor, blur: Blur) -> Tensor:
    """Convolution along each axis; its own adjoint."""
    for axis, weights in blur:
        x, parts = _along(nodes, axis), []
        for start, stop, low, high in _blocks(x.shape[1], weights):
            index, inside = _band(weights, start, stop, low, high)
            parts.append(torch.where(inside, weights[index], 0.0) @ x[:, low:high])  # [before, 32, after]
        nodes = (torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]).view(nodes.shape)
    return nodes


def blur_gradients(nodes: Tensor, gradient: Tensor, blur: Blur) -> list[Tensor]:
    """The gradients of each axis' weights from that of `blurred(nodes, blur)`."""
    found = []
    for axis, weights in blur:
        others = [(c, w) for c, w in blur if c != axis]
        x, g = _along(blurred(nodes, others), axis), _along(gradient, axis)
        total = torch.zeros_like(weights)
        for start, stop, low, high in _blocks(x.shape[1], weights):
            index, inside = _band(weights, start, stop, low, high)
            products = (g[:, start:stop] @ x[:, low:high].mT).sum(0)
            total.index_add_(0, index.flatten(), torch.where(inside, products, 0.0).flatten())
        found.append(total)
    return found


def _blocks(nodes: int, weights: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """(start, stop) of the nodes computed together, (low, high) of those that they see."""
    reach = len(weights) // 2
    return spans(nodes, nodes if nodes <= BLOCK + 2 * reach else BLOCK, reach)


def _along(nodes: Tensor, axis: int) -> Tensor:
    """[x_0, x_1, x_2, B, m, e] -> [before, x_axis, after]."""
    nodes = nodes.flatten(axis + 1)
    return nodes.flatten(0, axis - 1) if axis else nodes[None]


def _band(weights: Tensor, start: int, stop: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Which weight is from nodes [low, high) to nodes [start, stop), and whether there is one, [stop - start, w]."""
    rows = torch.arange(start, stop, device=weights.device)[:, None]
    index = torch.arange(low, high, device=weights.device) - rows + len(weights) // 2
    return index.clamp(0, len(weights) - 1), (index >= 0) & (index < len(weights))


def to_cells(x: Tensor, shape: Triple, cell: Triple) -> Tensor:
    """Tokens sorted by cells, with zeros where a cell reaches over the edge: [B, N, c] -> [cells, B, S, c]."""
    x = x.unflatten(1, shape)  # [B, n_0, n_1, n_2, c]
    over = [-n % s for n, s in zip(shape, cell, strict=True)]
    if any(over):
        x = F.pad(x, (0, 0, 0, over[2], 0, over[1], 0, over[0]))
    for axis in (2, 1, 0):
        x = x.unflatten(axis + 1, (-1, cell[axis]))
    x = x.permute(1, 3, 5, 0, 2, 4, 6, 7)  # [c_0, c_1, c_2, B, s_0, s_1, s_2, c]
    return x.flatten(4, 6).flatten(0, 2)  # [cells, B, S, c]


def from_cells(x: Tensor, shape: Triple, cell: Triple) -> Tensor:
    """The inverse of `to_cells`: [cells, B, S, c] -> [B, N, c]."""
    cells = [-(-n // s) for n, s in zip(shape, cell, strict=True)]
    x = x.unflatten(2, cell).unflatten(0, cells)  # [c_0, c_1, c_2, B, s_0, s_1, s_2, c]
    x = x.permute(3, 0, 4, 1, 5, 2, 6, 7).flatten(5, 6).flatten(3, 4).flatten(1, 2)
    return x[:, : shape[0], : shape[1], : shape[2]].flatten(1, 3)  # [B, N, c]
