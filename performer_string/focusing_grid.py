"""A mixture of wide Gaussians over a grid: splat phi(k_j) v_j^T onto coarse nodes, blur, slice at the queries.

    lambda(r) = sum_g a_g exp(-|r|^2 / (2 s_g^2)) ~ sum_g a_g (hat B_g hat^T)(r)

Nodes lie t apart, `cell` tokens along each axis; hat weights interpolate between them. Splat and slice each widen the
kernel by the hats' variance f (1 - f) t^2 at the fraction f of a cell, t^2 (1 - 1 / cell^2) / 6 in the mean over the
tokens of a cell, so that the blur B_g is a Gaussian of the variance b^2 = s_g^2 - t^2 (1 - 1 / cell^2) / 3 and of the
amplitude s_g / b along each axis, which keeps the mass. cell = 1 is exact.

On a lattice the hat weights of every cell are the same, so that splat and slice are matrix products. Heads go one by
one and values in blocks, so that the sums at the nodes [nodes, m, d] are never held whole; the backward pass computes
each block again. Source: the project's own; the bilateral grid is Chen, Paris and Durand (2007).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from performer_string.lattice import Lattice, Triple, from_cells, to_cells

REACH = 3.5  # of the blur, in standard deviations
BLOCK = 32  # nodes that a banded blur computes together
LEAST_BLOCK = 16  # values at a time, or matrix products get slow
ENTRIES = {"cpu": 5e6, "cuda": 2.5e8}  # numbers held at once if that is possible: a CPU is fastest within its caches


def cells_of(spacing: float, lattice: Lattice) -> Triple:
    """Tokens of a cell along each axis: the most whose nodes lie at most `spacing` patches apart, at least 1.

    Four cells along an axis cost next to nothing more than one, and keep the gradient to a very wide Gaussian's width.
    """
    c0, c1, c2 = (
        max(1, min(n // 4, math.floor(spacing / step + 1e-9)))
        for n, step in zip(lattice.shape, lattice.steps, strict=True)
    )
    return c0, c1, c2


def nodes_of(lattice: Lattice, cell: Triple) -> Triple:
    """Nodes along each axis: one more than cells, except along an axis of one token."""
    x0, x1, x2 = (-(-n // s) + (n > 1) for n, s in zip(lattice.shape, cell, strict=True))
    return x0, x1, x2


def hat_weights(lattice: Lattice, cell: Triple, like: Tensor) -> Tensor:
    """Of each token of a cell at each of its corners, [S, P], P = 2^C over the axes with more than one token."""
    weights = like.new_ones(1, 1)
    for n, s in zip(lattice.shape, cell, strict=True):
        upper = torch.arange(s, device=like.device, dtype=like.dtype) / s
        axis = torch.stack([1 - upper, upper], dim=-1) if n > 1 else like.new_ones(1, 1)  # [s, 2] or [1, 1]
        weights = torch.kron(weights, axis)
    return weights


def stencil(widths: Tensor, reach: int, cell: int, step: float) -> Tensor:
    """The blur along one axis: widths [H] -> its weights at -reach .. reach nodes, [H, 2 reach + 1]."""
    spacing = cell * step
    variance = widths.square() - spacing**2 * (1 - cell**-2) / 3
    offsets = torch.arange(-reach, reach + 1, device=widths.device, dtype=widths.dtype) * spacing
    return (widths / variance.sqrt())[..., None] * (-offsets.square() / (2 * variance[..., None])).exp()


def toeplitz(weights: Tensor, rows: int, columns: int, first: int) -> Tensor:
    """T_ij = weights[j - i + first], 0 outside: weights [H, K] -> [H, rows, columns]."""
    index = torch.arange(columns, device=weights.device) - torch.arange(rows, device=weights.device)[:, None] + first
    inside = (index >= 0) & (index < weights.shape[-1])
    return torch.where(inside, weights[:, index.clamp(0, weights.shape[-1] - 1)], 0.0)


def blur_axis(nodes: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Convolution along an axis of [B, H, x_0, x_1, x_2, c] with weights [H, 2 reach + 1], by matrix products."""
    size, reach = nodes.shape[axis], weights.shape[-1] // 2
    shape = nodes.shape
    x = nodes.flatten(axis + 1).flatten(2, axis - 1) if axis > 2 else nodes.flatten(axis + 1).unsqueeze(2)
    # x [B, H, before, x_axis, after]
    if size <= BLOCK + 2 * reach:
        return (toeplitz(weights, size, size, reach)[:, None] @ x).view(shape)
    over = -size % BLOCK
    windows = F.pad(x, (0, 0, reach, reach + over)).unfold(3, BLOCK + 2 * reach, BLOCK)  # [B, H, before, k, after, w]
    blurred = toeplitz(weights, BLOCK, BLOCK + 2 * reach, 0)[:, None, None] @ windows.mT  # [B, H, before, k, 32, after]
    return blurred.flatten(3, 4)[:, :, :, :size].reshape(shape)


def scatter_corners(x: Tensor) -> Tensor:
    """Cells' corners summed at the nodes: [B, H, c_0, c_1, c_2, m, p_0, p_1, p_2, e] -> [B, H, x_0, x_1, x_2, m, e]."""
    for axis in range(3):
        if x.shape[6] == 1:
            x = x.squeeze(6)
            continue
        lower, upper = x.unbind(6)
        behind = [0, 0] * (lower.ndim - 3 - axis)
        x = F.pad(lower, [*behind, 0, 1]) + F.pad(upper, [*behind, 1, 0])
    return x


def gather_corners(nodes: Tensor, cells: Triple) -> Tensor:
    """[B, H, x_0, x_1, x_2, m, e] -> the nodes at each cell's corners, [B, H, cells, m, P e]."""
    corners = [nodes]
    for axis, count in enumerate(cells):
        if nodes.shape[2 + axis] > count:
            corners = [part.narrow(2 + axis, first, count) for part in corners for first in (0, 1)]
    return torch.stack(corners, dim=-2).flatten(-2).flatten(2, 4)


def _block(
    fq: Tensor, fk: Tensor, v: Tensor, hats: Tensor, cells: Triple, sides: Triple, blurs: list[list[tuple[int, Tensor]]]
) -> Tensor:
    """A block of values through the grid: features [B, H, cells, S, m], values [B, H, cells, S, e] and the result."""
    features, block, corners = fq.shape[-1], v.shape[-1], hats.shape[-1]
    spread = (v[..., None, :] * hats[..., None]).flatten(-2)  # [B, H, cells, S, P e]
    sums = fk.mT @ spread  # [B, H, cells, m, P e]
    nodes = scatter_corners(sums.unflatten(2, cells).unflatten(-1, (*sides, block))).flatten(-2)
    del sums
    blurred: Tensor | None = None
    for blur in blurs:
        part = nodes  # [B, H, x_0, x_1, x_2, m e]
        for axis, weights in blur:
            part = blur_axis(part, weights, axis + 2)
        blurred = part if blurred is None else blurred + part
    assert blurred is not None
    at_corners = gather_corners(blurred.unflatten(-1, (features, block)), cells)  # [B, H, cells, m, P e]
    sliced = (fq @ at_corners).unflatten(-1, (corners, block))  # [B, H, cells, S, P, e]
    return (sliced * hats[..., None]).sum(-2)


def grid_sum(
    fq: Tensor, fk: Tensor, v: Tensor, amplitudes: Tensor, widths: Tensor, lattice: Lattice, cell: Triple
) -> Tensor:
    """sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j for a mixture of Gaussians, to a few per cent. [B, H, N, d]

    Args:
        fq, fk: features [B, H, N, m].
        v: [B, H, N, d].
        amplitudes, widths: a_g and s_g of each head, [H, G], widths in patches; nodes lie half a width apart or less.
        lattice: of the tokens, two or more.
        cell: tokens from node to node along each axis.
    """
    nodes, long = nodes_of(lattice, cell), [c for c in range(3) if lattice.shape[c] > 1]
    cells = tuple(-(-n // s) for n, s in zip(lattice.shape, cell, strict=True))
    sides = tuple(2 if c in long else 1 for c in range(3))
    blurs = []
    for amplitude, width in zip(amplitudes.unbind(-1), widths.unbind(-1), strict=True):
        blur: list[tuple[int, Tensor]] = []
        for c in long:
            spacing = cell[c] * lattice.steps[c]
            reach = min(nodes[c] - 1, math.ceil(REACH * float(width.detach().max()) / spacing))
            weights = stencil(width, reach, cell[c], lattice.steps[c])  # [H, K]
            blur.append((c, weights if blur else weights * amplitude[:, None]))
        blurs.append(blur)
    hats = hat_weights(lattice, cell, fq)
    fq, fk, v = (to_cells(x, lattice.shape, cell) for x in (fq, fk, v))
    per_value = len(fq) * math.prod(cells) * hats.shape[-1] * fq.shape[-1]  # of one head
    room = ENTRIES.get(fq.device.type, 5e6) / per_value
    block = v.shape[-1] if room >= v.shape[-1] else min(v.shape[-1], max(LEAST_BLOCK, int(room)))
    together = v.shape[1] if room >= v.shape[1] * v.shape[-1] else 1  # heads
    outs = []
    for start, (q, k, values) in enumerate(zip(*(x.split(together, dim=1) for x in (fq, fk, v)), strict=True)):
        heads = slice(start * together, (start + 1) * together)
        own = [[(c, weights[heads]) for c, weights in blur] for blur in blurs]
        parts = []
        for part in values.split(block, dim=-1):
            given = (q, k, part, hats, cells, sides, own)
            if torch.is_grad_enabled() and (block < v.shape[-1] or together < v.shape[1]):
                parts.append(checkpoint(_block, *given, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(_block(*given))  # type: ignore[arg-type]
        outs.append(torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0])
    return from_cells(torch.cat(outs, dim=1), lattice.shape, cell)
