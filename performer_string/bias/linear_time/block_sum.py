"""The exact sum of an exponential decay of the L1 distance over a grid, in linear time.

    out_i = sum_j lambda_ij phi(q_i)^T phi(k_j) v_j,   lambda_ij = prod_c a_c^|i_c - j_c|

Each axis has one factor for sources before a target and one for sources behind it, so that decays may be directed. The
grid is cut into blocks. Inside a block are N x N weights. The sources in other rows of blocks are summed along the
columns of the grid, and those in other blocks of the same row along its rows (`carried_sums`). No pair is left out.

Heads are computed one by one. The features of a head are in memory, and the carried sums of some features at a time.
The backward pass computes both again. Source: the project's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.axis_decay import AxisDecay
from performer_string.bias.linear_time.blocks import Blocks, active_axes
from performer_string.bias.linear_time.carried_sums import far_gradients, far_sum
from performer_string.bias.linear_time.inputs import SumInputs
from performer_string.bias.linear_time.recompute import FeatureSource, Recomputed
from performer_string.utils.autograd import first_order
from performer_string.utils.dtype import angle_dtype
from performer_string.utils.numerics import chunk_slices

# Carried sums in memory at a time, in numbers: on a CPU the fastest of the sizes tried.
CARRIED = {"cpu": 2**19, "cuda": 2**26}

Logs = Sequence[Sequence[float]]  # logarithms of the factors, [2, 2]: axes, and sources before and behind


class _BlockSum(torch.autograd.Function):
    """out_i = sum_j lambda_ij (fq_i . fk_j) v_j of one head, with one more column: fq_i . key_sums.

    Shapes: q, k, v [Y, X, B, h, w, .], key_sums [B, m, .], log_factors [2, 2] as `logs`.
    """

    @staticmethod
    def forward(
        ctx: Any, source: FeatureSource, blocks: Blocks, logs: Logs, log_factors: Tensor, *tensors: Any
    ) -> Tensor:
        masked, q, k, v, key_sums, *_ = tensors  # of `SumInputs.tensors`
        ctx.source, ctx.blocks, ctx.logs = source, blocks, logs
        ctx.save_for_backward(*tensors)
        fq = source.queries(flat(q)).unflatten(3, q.shape[3:5])
        fk = source.keys(flat(k), None if masked is None else flat(masked)).unflatten(3, q.shape[3:5])
        decays = axis_decays(logs, blocks, v)
        sums = near_sum(fq, fk, v, decays)
        for axis, rows, part in far_parts(fq, v):
            queries, keys, values = (by_lane(x, axis) for x in (fq[rows][..., part], fk[rows][..., part], v[rows]))
            sums[rows] += by_block(far_sum(queries, keys, values, decays[axis], decays[1 - axis]), axis, v[rows])
        total = key_totals(fk, key_sums)
        out = torch.cat([sums, sums.new_zeros(*sums.shape[:-1], 1)], dim=-1)
        out[..., -total.shape[-1] :] += times(fq, total)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        masked, q, k, v, key_sums, *learned = saved
        blocks, for_factors, g = ctx.blocks, ctx.needs_input_grad[3], gradient[..., :-1]
        queries = Recomputed(ctx.source.queries, flat(q))
        keys = Recomputed(ctx.source.keys, flat(k), None if masked is None else flat(masked))
        fq, fk = (x.features.unflatten(3, q.shape[3:5]) for x in (queries, keys))
        decays = axis_decays(ctx.logs, blocks, v, for_factors)
        transposed = axis_decays([sides[::-1] for sides in ctx.logs], blocks, v)
        for_q, for_k, for_v = near_gradients((fq, fk, v, g), decays, for_factors)
        factors_grad = v.new_zeros(2, 2, dtype=angle_dtype(v))
        for axis, rows, part in far_parts(fq, v):
            tensors = tuple(by_lane(x[rows], axis) for x in (fq[..., part], fk[..., part], v, g))
            across = (decays[1 - axis], transposed[1 - axis])
            *found, along = far_gradients(tensors, decays[axis], *across, for_factors)
            for total, x in zip((for_q[..., part], for_k[..., part], for_v), found, strict=True):
                total[rows] += by_block(x, axis, v[rows])
            factors_grad[axis] += along
        total = key_totals(fk, key_sums)
        columns = gradient[..., -total.shape[-1] :]
        for_q += times(columns, total.mT)
        total_grad = (flat(fq).mT @ flat(columns)).sum((0, 1))  # [B, m, .]
        if key_sums is None:
            for_k += total_grad.mT[:, None]
        queries.grad, keys.grad = flat(for_q), flat(for_k)
        learned_grads = [torch.zeros_like(x) for x in learned]
        q_grad = queries.backward(learned, learned_grads).view(q.shape)
        k_grad = keys.backward(learned, learned_grads).view(k.shape)
        if for_factors:
            factors_grad += torch.stack([decay.gradient() for decay in decays]).to(factors_grad)
        key_sums_grad = None if key_sums is None else total_grad
        return None, None, None, factors_grad.to(v), None, q_grad, k_grad, for_v, key_sums_grad, *learned_grads


def flat(x: Tensor) -> Tensor:
    """Return the tokens of each block in one axis, as feature maps take them: [Y, X, B, h, w, c] -> [.., h w, c]."""
    return x.flatten(3, 4)


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """Return tokens times a matrix of each sample: [Y, X, B, h, w, a] [B, a, b] -> [Y, X, B, h, w, b]."""
    return (flat(x) @ matrix).unflatten(3, x.shape[3:5])


def key_totals(fk: Tensor, key_sums: Tensor | None) -> Tensor:
    """Return `key_sums`, or the sum of all keys, [B, m, 1]."""
    return fk.sum((0, 1, 3, 4))[..., None] if key_sums is None else key_sums


def axis_decays(logs: Logs, blocks: Blocks, like: Tensor, learned: bool = False) -> list[AxisDecay]:
    """Return the decays along the columns and along the rows of the grid; for the arguments see `AxisDecay`."""
    pairs = zip(logs, (blocks.height, blocks.width), strict=True)
    return [AxisDecay(sides, size, like, learned) for sides, size in pairs]


def near_sum(fq: Tensor, fk: Tensor, v: Tensor, decays: list[AxisDecay]) -> Tensor:
    """Return the sum over the sources in the block of a target, [Y, X, B, h, w, d]."""
    weights, out = torch.kron(decays[0].inside, decays[1].inside), torch.empty_like(v)  # [h w, h w]
    for q, k, values, sums in zip(*map(flat, (fq, fk, v, out)), strict=True):  # a row of blocks, whose weights fit
        torch.matmul((q @ k.mT).mul_(weights), values, out=sums)
    return out


def near_gradients(
    tensors: tuple[Tensor, ...], decays: list[AxisDecay], learned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of fq, fk and v from that of `near_sum`, g; add those of the decays to their `grad`."""
    for_q, for_k, for_v = (torch.empty_like(x) for x in tensors[:3])
    with torch.set_grad_enabled(learned):
        lambdas = torch.kron(decays[0].inside, decays[1].inside)  # [h w, h w]
    weights, pairs = lambdas.detach(), torch.zeros_like(lambdas)
    for q, k, v, g, dq, dk, dv in zip(*map(flat, (*tensors, for_q, for_k, for_v)), strict=True):
        scores, inner = q @ k.mT, g @ v.mT  # [X, B, h w, h w]
        if learned:
            pairs += (scores * inner).sum((0, 1))
        scores, inner = scores.mul_(weights), inner.mul_(weights)
        torch.matmul(inner, k, out=dq)
        torch.matmul(inner.mT, q, out=dk)
        torch.matmul(scores.mT, g, out=dv)
    if learned:
        lambdas.backward(pairs)
    return for_q, for_k, for_v


def by_lane(x: Tensor, axis: int) -> Tensor:
    """Return tokens [Y, X, B, h, w, c] as `carried_sums` takes them, along the columns or along the rows.

    Along the columns they are [Y, X, B, w, h, c]. Along the rows, each row of blocks for itself, [X, 1, Y B, h, w, c].
    """
    return x.transpose(0, 1).flatten(1, 2)[:, None] if axis else x.transpose(3, 4).contiguous()


def by_block(x: Tensor, axis: int, like: Tensor) -> Tensor:
    """Undo `by_lane`, for tokens of the rows of blocks of a tensor."""
    return x.squeeze(1).unflatten(1, (len(like), -1)).transpose(0, 1) if axis else x.transpose(3, 4)


def far_parts(fq: Tensor, v: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Yield parts of the sum over other blocks, whose carried sums are in memory together.

    Args:
        fq, v: features and values, [Y, X, B, h, w, .].

    Yields:
        Axis of the sum, rows of blocks, and features. Sums along the columns are over all rows of blocks.
    """
    (y, x, batch, h, w, d), features = v.shape, fq.shape[-1]
    budget = CARRIED.get(v.device.type, CARRIED["cpu"]) // (batch * d)  # lanes times features
    for part in chunk_slices(features, max(16, budget // (x * w) // 16 * 16)) if y > 1 else ():
        yield 0, slice(None), part
    for rows in chunk_slices(y, max(1, budget // (h * features))) if x > 1 else ():
        for part in chunk_slices(features, max(16, budget // h // 16 * 16)):
            yield 1, rows, part


def block_sum(inputs: SumInputs, rates: Tensor, blocks: Blocks) -> Tensor:
    """Return sum_j lambda_ij phi(q_i)^T phi(k_j) v_j of a decay by its rates, with one more column.

    lambda_ij = exp(-sum_c rate_c |p_ic - p_jc|).

    Args:
        inputs: tokens and values, on a grid with at most two axes of more than one token.
        rates: rates of the decay per patch of distance, at least 0, [H, C, 2]. The first is for keys whose coordinate
            is lower than the query's, the second for keys whose coordinate is higher. Infinity for no weight.
        blocks: blocks of the grid, from `make_blocks`.

    Returns:
        Sums, [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    axes = active_axes(inputs.grid)
    rows, columns = axes if len(axes) == 2 else (axes[0] if axes else 0, None)
    logs = [
        torch.zeros_like(rates[:, 0]) if axis is None else -rates[:, axis] * inputs.grid.steps[axis]
        for axis in (rows, columns)
    ]
    log_factors = torch.stack(logs, dim=1)  # [H, 2, 2]
    outs, numbers = [], log_factors.detach().tolist()
    for h, head in enumerate(inputs.each_head(blocks.split, blocks.are_full)):
        outs.append(blocks.join(_BlockSum.apply(head.source, blocks, numbers[h], log_factors[h], *head.tensors)))
    return torch.stack(outs, dim=1)
