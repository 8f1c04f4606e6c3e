"""The sum over the sources in other blocks along one axis, by sums that are carried from block to block.

A lane is a row or a column of the grid, and n of its tokens lie in a block. Its sum S = sum_j a^|i - j| k_j v_j^T is
over the tokens j in all blocks before, decayed to the edge i of the block. That is the recurrence of linear attention
with a decay (RetNet, arXiv:2307.08621). At a block the sums of all lanes are mixed by the decay across the axis, and
multiplied with the queries.

Shapes: queries, keys and values are [S, X, B, L, n, .] with S blocks along the axis, and X blocks of L lanes across it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from performer_string.bias.linear_time.axis_decay import AxisDecay
from performer_string.utils.dtype import angle_dtype


def in_order(count: int, side: int) -> list[int]:
    """Return the blocks along an axis in the order in which the sources of a side come before their targets."""
    return list(range(count))[:: -1 if side else 1]


def carried_sums(k: Tensor, v: Tensor, side: int, factor: float) -> Iterator[tuple[int, Tensor]]:
    """Yield each block but the first, with the sums over the blocks before it.

    Args:
        k, v: keys, and values that are decayed to the edge of their block.
        side: side of the sources.
        factor: decay over a block.

    Yields:
        Index of the block, and the sums of its lanes, [X, B, L, m, d], which the next step overwrites.
    """
    first, *others = in_order(len(k), side)
    lanes, k, v = k.shape[1:4], k.flatten(1, 3), v.flatten(1, 3)
    sums = k[first].mT @ v[first]
    for s in others:
        yield s, sums.unflatten(0, lanes)
        if s != others[-1]:
            sums.baddbmm_(k[s].mT, v[s], beta=factor)


def mix(sums: Tensor, across: AxisDecay) -> Tensor:
    """Return sums [X, B, L, m, d], mixed by the decay across the axis.

    The lanes of a block are mixed by a product. Other blocks receive the sum of its lanes, decayed to its edge.
    """
    flat = sums.flatten(3).flatten(0, 1)  # [X B, L, m d]
    mixed = torch.bmm(across.inside.expand(len(flat), -1, -1), flat)
    if len(sums) > 1:
        sent = torch.bmm(across.to_edge.expand(len(flat), -1, -1), flat).unflatten(0, sums.shape[:2])  # [X, B, 2, m d]
        received = [received_sums(sent[:, :, side], side, across.over_block[side]) for side in (0, 1)]
        mixed.baddbmm_(across.from_edge.mT.expand(len(flat), -1, -1), torch.stack(received, dim=2).flatten(0, 1))
    return mixed.view(sums.shape)


def received_sums(sent: Tensor, side: int, factor: Tensor) -> Tensor:
    """Return what each block receives from all blocks on one side, [X, B, c], of what each sends."""
    total = torch.zeros_like(sent[0])
    received = [total] * len(sent)
    for x in in_order(len(sent), side):
        received[x] = total
        total = torch.addcmul(sent[x], total, factor)
    return torch.stack(received)


def far_sum(q: Tensor, k: Tensor, v: Tensor, along: AxisDecay, across: AxisDecay) -> Tensor:
    """Return sum_j lambda_ij (q_i . k_j) v_j over the sources j in other blocks along the axis: [S, X, B, L, n, d].

    Args:
        q, k, v: queries, keys and values.
        along, across: decays along the axis and across it.
    """
    out = torch.zeros_like(v)
    for side in along.sides:
        ends, starts = along.to_edge[side][:, None], along.from_edge[side][:, None]
        for s, sums in carried_sums(k, v * ends, side, along.factors[side]):
            out[s].addcmul_(q[s] @ mix(sums, across), starts)
    return out


def far_gradients(
    tensors: tuple[Tensor, ...], along: AxisDecay, across: AxisDecay, transposed: AxisDecay, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, and of the logarithms of the factors along the axis, [2].

    The gradient of log a is a sum over all pairs of |i - j| times what a pair adds to q_i . dq_i, and to k_j . dk_j. It
    is a difference of first moments. Gradients of the decays across the axis are added to their `grad`.

    Args:
        tensors: q, k and v, and the gradient of `far_sum`.
        along, across: decays along the axis and across it.
        transposed: decay across the axis with both sides exchanged.
        learned: whether gradients of the decays are wanted.
    """
    q, k, v, g = tensors
    for_q, for_k, for_v = (torch.zeros_like(x) for x in (q, k, v))
    for_logs = v.new_zeros(2, dtype=angle_dtype(v))
    for side in along.sides:
        ends, starts, factor = along.to_edge[side][:, None], along.from_edge[side][:, None], along.factors[side]
        sources, upstream = v * ends, g * starts
        sign = 1 - 2 * side  # |i - j| is i - j for sources before a target, and j - i behind it
        for s, sums in carried_sums(k, sources, side, factor):
            with torch.set_grad_enabled(learned):
                mixed = mix(sums, across)
            if learned:
                mixed.backward(q[s].mT @ upstream[s])
            dq = upstream[s] @ mixed.detach().mT
            for_q[s] += dq
            if learned:
                for_logs[side] += sign * first_moment(q[s], dq, s)
        for s, sums in carried_sums(q, upstream, 1 - side, factor):
            mixed = mix(sums, transposed)
            dk = sources[s] @ mixed.mT
            for_k[s] += dk
            for_v[s].addcmul_(k[s] @ mixed, ends)
            if learned:
                for_logs[side] -= sign * first_moment(k[s], dk, s)
    return for_q, for_k, for_v, for_logs


def first_moment(x: Tensor, gradient: Tensor, block: int) -> Tensor:
    """Return sum_i i x_i^T g_i over the coordinates i of a block along the axis, for x and g [X, B, L, n, .]."""
    dots = torch.linalg.vecdot(x, gradient).sum((0, 1, 2)).to(angle_dtype(x))  # [n]
    return dots @ torch.arange(block * len(dots), (block + 1) * len(dots), device=dots.device).to(dots)
