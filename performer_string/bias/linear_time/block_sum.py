"""The exact sum of an exponential decay of the L1 distance over a grid, in linear time.

    out_i = sum_j lambda_ij phi(q_i)^T phi(k_j) v_j,   lambda_ij = prod_c a_c^|i_c - j_c|

Each axis has one factor for sources before and one for those behind a target, so that decays may be directed. The grid
is cut into blocks. Inside a block are N x N weights. All other pairs come by four walks (`decay_walk`): from above and
from below, over whole rows; and from the left and from the right within the rows of the block. Nothing is left out.

Features are those of one head. The backward pass computes them, and the states, again. Memory N (m + d) for one head.
Source: the project's own; the recurrence along an axis is that of linear attention with a decay (RetNet,
arXiv:2307.08621), here in both directions of two axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.decay_matrix import AxisDecay, Blocks, active_axes
from performer_string.bias.linear_time.decay_walk import Consumer, Walk
from performer_string.bias.linear_time.recompute import FeatureSource, Recomputed
from performer_string.ops.layout import Grid
from performer_string.utils.autograd import first_order

Decays = tuple[AxisDecay, AxisDecay]  # along the columns and along the rows


def block_decay(blocks: Blocks, decays: Decays) -> Tensor:
    """Return lambda between the tokens of a block, targets first, in float64: [h w, h w]."""
    down, right = decays
    return torch.kron(down.mixing(blocks.height, False).value, right.mixing(blocks.width, False).value)


def walks(blocks: Blocks, decays: Decays) -> list[Walk]:
    """Return the walks that bring what is outside of a block: from above, below, left and right."""
    down, right = decays
    return [
        *(Walk(blocks, True, backward, down, right) for backward in (False, True)),
        *(Walk(blocks, False, backward, right, down) for backward in (False, True)),
    ]


def block_gradient(blocks: Blocks, decays: Decays, pairs: Tensor) -> Tensor:
    """Return the gradients of the logarithms of the factors inside of blocks.

    Args:
        blocks: of the grid.
        decays: along both axes.
        pairs: gradient of lambda between the tokens of a block, [h w, h w], in float64.

    Returns:
        [2, 2]: axes, and sources before and behind.
    """
    down, right = (d.mixing(n, False) for d, n in zip(decays, (blocks.height, blocks.width), strict=True))
    pairs = pairs.view(blocks.height, blocks.width, blocks.height, blocks.width)
    return torch.stack(
        [
            down.gradient(torch.einsum("ywzx,wx->yz", pairs, right.value)),
            right.gradient(torch.einsum("ywzx,yz->wx", pairs, down.value)),
        ]
    )


class _BlockSum(torch.autograd.Function):
    """out_i = sum_j lambda_ij (fq_i . fk_j) v_j of one head, and one column more: fq_i . key_sums.

    Shapes: q, k, v [Y, X, B, h, w, .], key_sums [B, m, .], log_factors [2, 2]: axes, and sources before and behind.
    """

    @staticmethod
    def forward(
        ctx: Any,
        source: FeatureSource,
        blocks: Blocks,
        decays: Decays,
        masked: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_sums: Tensor | None,
        log_factors: Tensor,
        *learned: Tensor,
    ) -> Tensor:
        ctx.source, ctx.blocks, ctx.decays, ctx.has_key_sums = source, blocks, decays, key_sums is not None
        fq, fk, width = _features(source.queries, q), _features(source.keys, k, masked), v.shape[-1]
        total = fk.sum((0, 1, 3, 4))[..., None] if key_sums is None else key_sums  # [B, m, .]
        out = v.new_zeros(*v.shape[:-1], width + 1)
        sums, decay = out[..., :width], block_decay(blocks, decays).to(v)
        for y in range(len(q)):
            queries, keys, values = (x[y].flatten(2, 3) for x in (fq, fk, v))  # [X, B, h w, .]
            sums[y].copy_(((queries @ keys.mT).mul_(decay) @ values).view(v[y].shape))
        for walk in walks(blocks, decays):
            walk.run(v, fk, [Consumer(fq, sums, of_rows=False)])
        out[..., -total.shape[-1] :] += (fq.flatten(3, 4) @ total).view(*v.shape[:-1], -1)
        ctx.save_for_backward(q, k, v, masked, total, log_factors, *learned)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, masked, total, log_factors, *learned = ctx.saved_tensors
        source, blocks, decays = ctx.source, ctx.blocks, ctx.decays
        fq, fk, width = _features(source.queries, q), _features(source.keys, k, masked), v.shape[-1]
        for_factors = ctx.needs_input_grad[8]
        g = gradient[..., :width].contiguous()
        fq_grad, fk_grad, v_grad = torch.empty_like(fq), torch.empty_like(fk), torch.empty_like(v)
        decay = block_decay(blocks, decays).to(v)
        pairs = torch.zeros(decay.shape, dtype=torch.float64, device=v.device)
        for y in range(len(q)):
            queries, keys, values, upstream = (x[y].flatten(2, 3) for x in (fq, fk, v, g))  # [X, B, h w, .]
            scores, inner = queries @ keys.mT, upstream @ values.mT  # [X, B, h w, h w]
            if for_factors:
                pairs += (scores * inner).sum((0, 1)).double()
            scores, inner = scores.mul_(decay), inner.mul_(decay)
            gradients = (inner @ keys, inner.mT @ queries, scores.mT @ upstream)
            for x, part in zip((fq_grad, fk_grad, v_grad), gradients, strict=True):
                x[y] = part.view(x[y].shape)
        factors_grad = block_gradient(blocks, decays, pairs) if for_factors else None
        there, back = walks(blocks, decays), walks(blocks, (decays[0].transposed(), decays[1].transposed()))
        for walk, transposed in zip(there, back, strict=True):
            to_queries = Consumer(g, fq_grad, True, fq if for_factors else None)
            walk.run(v, fk, [to_queries], (g, fq) if for_factors else None)
            to_keys = Consumer(v, fk_grad, True, fk if for_factors else None)
            transposed.run(g, fq, [to_keys, Consumer(fk, v_grad, False)])
            if factors_grad is not None:
                # Forward, sources of `walk` are before their targets, and i - j is the number of steps. In the
                # transposed walk sources are the i and targets the j, so that there it is j - i.
                axis, side, sign = (0 if walk.vertical else 1), int(walk.backward), -1 if walk.backward else 1
                factors_grad[axis, side] += sign * to_queries.moment
                factors_grad[axis, 1 - side] += sign * to_keys.moment
                factors_grad[1 - axis] += walk.across_gradient
        total_columns = gradient[..., -total.shape[-1] :].flatten(3, 4)  # [Y, X, B, h w, .]
        fq_grad += (total_columns @ total.mT).view(fq.shape)
        total_grad = (fq.flatten(3, 4).mT @ total_columns).sum((0, 1))  # [B, m, .]
        if not ctx.has_key_sums:
            fk_grad += total_grad[:, None, None, :, 0]
        del fq, fk
        learned_grads = [torch.zeros_like(x) for x in learned]
        q_grad = _backward(source.queries, fq_grad, learned, learned_grads, q)
        k_grad = _backward(source.keys, fk_grad, learned, learned_grads, k, masked)
        key_sums_grad = total_grad if ctx.has_key_sums else None
        factors_grad = None if factors_grad is None else factors_grad.to(log_factors)
        return None, None, None, None, q_grad, k_grad, v_grad, key_sums_grad, factors_grad, *learned_grads


def _by_tokens(x: Tensor, *rest: Tensor | None) -> Iterator[tuple[Tensor | None, ...]]:
    """Yield rows of blocks as the features' source takes them: [Y, X, B, h, w, c] -> [X, B, h w, c]."""
    for y in range(len(x)):
        yield tuple(None if z is None else z[y].flatten(2, 3) for z in (x, *rest))


def _features(compute: Callable[..., Tensor], x: Tensor, *rest: Tensor | None) -> Tensor:
    """Return features of tokens, by rows of blocks, which fit into the cache: [Y, X, B, h, w, c] -> [.., m]."""
    rows = [compute(*arguments) for arguments in _by_tokens(x, *rest)]
    return torch.stack(rows).unflatten(3, x.shape[3:5])


def _backward(
    compute: Callable[..., Tensor],
    gradient: Tensor,
    learned: Sequence[Tensor],
    learned_grads: Sequence[Tensor],
    x: Tensor,
    *rest: Tensor | None,
) -> Tensor:
    """Return the gradient of tokens from that of their features, by rows of blocks; arguments as of `Recomputed`."""
    out = torch.empty_like(x)
    for y, (tokens, *others) in enumerate(_by_tokens(x, *rest)):
        assert tokens is not None
        part = Recomputed(compute, tokens, *others).backward(gradient[y].flatten(2, 3), learned, learned_grads)
        out[y] = part.view(x[y].shape)
    return out


def block_sum(
    source: FeatureSource,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rates: Tensor,
    grid: Grid,
    blocks: Blocks,
    masked: Tensor | None = None,
    key_sums: Tensor | None = None,
) -> Tensor:
    """Return sum_j lambda_ij phi(q_i)^T phi(k_j) v_j of a decay by its rates, and one column more.

    lambda_ij = exp(-sum_c rate_c |p_ic - p_jc|).

    Args:
        source: of the features of queries and keys.
        q, k: [B, H, N, .].
        v: [B, H, N, d].
        rates: for each patch of distance, at least 0, [H, C, 2]: for keys whose coordinate is lower than the query's,
            and for those whose coordinate is higher. Infinity for no weight.
        grid: of the tokens, with at most two axes of more than one token.
        blocks: of the grid, from `make_blocks`.
        masked: True for masked keys, [B, 1, N, 1].
        key_sums: [B, H, m, d + 1 or 1], as `decayed_sum` has it; None for the sum over the keys.

    Returns:
        [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    axes = active_axes(grid)
    rows, columns = axes if len(axes) == 2 else (None, axes[0] if axes else 0)
    logs = [
        torch.zeros_like(rates[:, 0]) if axis is None else -rates[:, axis] * grid.steps[axis]
        for axis in (rows, columns)
    ]
    log_factors = torch.stack(logs, dim=1)  # [H, 2, 2]
    if masked is None and not blocks.are_full:
        masked = torch.zeros(1, 1, grid.tokens, 1, dtype=torch.bool, device=v.device)
    if masked is not None:  # and so are places that hold no token
        masked = blocks.split((~masked[:, 0]).to(torch.uint8)) == 0  # [Y, X, B or 1, h, w, 1]
    outs = []
    numbers = log_factors.detach().tolist()
    for h, (queries, keys, values) in enumerate(zip(*(x.unbind(1) for x in (q, k, v)), strict=True)):
        head, total = source.select_heads(h), None if key_sums is None else key_sums[:, h]
        decays = (AxisDecay(*numbers[h][0]), AxisDecay(*numbers[h][1]))
        tokens = [blocks.split(x) for x in (queries, keys, values)]
        out = _BlockSum.apply(head, blocks, decays, masked, *tokens, total, log_factors[h], *head.learned)
        outs.append(blocks.join(out))
    return torch.stack(outs, dim=1)
