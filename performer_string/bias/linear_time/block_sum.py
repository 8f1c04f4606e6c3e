"""The exact sum of an exponential decay of the L1 distance over a grid, in linear time.

    out_i = sum_j lambda_ij phi(q_i)^T phi(k_j) v_j,   lambda_ij = prod_c a_c^|i_c - j_c|

Each axis has one factor for sources before a target and one for sources behind it, so that decays may be directed. The
grid is cut into blocks. Inside a block are N x N weights. All other pairs are summed by four scans (`decay_scan`).
Those from above and from below go over whole rows, and those from the left and from the right within the rows of the
block. No pair is left out.

Heads are computed one by one. Where there are many features, those of one row of blocks at a time are in memory. The
states of a row of tokens are in memory, too (m d numbers each). The backward pass computes both again.

Source: the project's own. The recurrence along an axis is that of linear attention with a decay (RetNet,
arXiv:2307.08621). Here it runs in both directions of two axes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.decay_matrix import (
    AxisDecay,
    Blocks,
    Decays,
    active_axes,
    block_decay,
    block_gradient,
)
from performer_string.bias.linear_time.decay_scan import Readout, Scan, wide
from performer_string.bias.linear_time.inputs import SumInputs
from performer_string.bias.linear_time.recompute import FeatureSource, Recomputed, chunk_features
from performer_string.utils.autograd import first_order


class Scans:
    """The scans that carry sums from outside of a block into it: from above, below, left and right.

    Args:
        blocks, decays: blocks of the grid, and decays along both axes.
        like: tensor of the device and type of the sums.
        learned: whether the gradients of the decays across the lanes are wanted.
    """

    def __init__(self, blocks: Blocks, decays: Decays, like: Tensor, learned: bool = False):
        down, right = decays
        self.vertical = [Scan(blocks, True, back, down, right, like, learned) for back in (False, True)]
        self.horizontal = [Scan(blocks, False, back, right, down, like, learned) for back in (False, True)]

    def of_sweep(self, sweep: int) -> list[Scan]:
        """Return the scans of a sweep over the bands: 0 from above, 1 from below."""
        return [self.vertical[sweep], *(self.horizontal if sweep == 0 else [])]


class _BlockSum(torch.autograd.Function):
    """out_i = sum_j lambda_ij (fq_i . fk_j) v_j of one head, with one more column: fq_i . key_sums.

    Two sweeps over the bands, down and up, compute the features of one band at a time.

    Shapes: q, k, v [Y, X, B, h, w, .], key_sums [B, m, .], log_factors [2, 2]: axes, and sources before and behind.
    """

    @staticmethod
    def forward(
        ctx: Any, source: FeatureSource, blocks: Blocks, decays: Decays, log_factors: Tensor, *tensors: Any
    ) -> Tensor:
        masked, q, k, v, key_sums, *learned = tensors  # of `SumInputs.tensors`
        ctx.source, ctx.blocks, ctx.decays, ctx.has_key_sums = source, blocks, decays, key_sums is not None
        width, bands = v.shape[-1], len(q)
        total = v.new_zeros(v.shape[2], source.size, 1) if key_sums is None else key_sums  # [B, m, .]
        out = v.new_zeros(*v.shape[:-1], width + 1)
        decay, scans = block_decay(blocks, decays).to(v), Scans(blocks, decays, v)
        kept: list[tuple[Tensor, Tensor]] | None = [] if features_fit(q, source) else None
        for sweep, y in sweeps(bands):
            sums = out[y, ..., :width]
            if sweep == 1 and kept is not None:
                fq, fk = kept.pop()
            else:
                mask = None if masked is None else flat(masked[y])
                fq, fk = source.queries(flat(q[y])), source.keys(flat(k[y]), mask)
            if sweep == 0:
                if kept is not None:
                    kept.append((fq, fk))
                sums.copy_(((fq @ fk.mT).mul_(decay) @ flat(v[y])).view(sums.shape))
                if key_sums is None:
                    total += fk.sum((0, 2))[..., None]
            if sweep == 1 or bands == 1:
                out[y, ..., -total.shape[-1] :] += (fq @ total).view(*sums.shape[:-1], -1)
            fq, fk = (x.view(*sums.shape[:-1], -1) for x in (fq, fk))  # [X, B, h, w, m]
            for scan in scans.of_sweep(sweep):
                scan.visit(y, v[y], fk, [Readout(fq, sums, of_rows=False)])
        ctx.save_for_backward(log_factors, masked, q, k, v, total, *learned)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        log_factors, masked, q, k, v, total, *learned = saved
        source, blocks, decays = ctx.source, ctx.blocks, ctx.decays
        width, bands, for_factors = v.shape[-1], len(q), ctx.needs_input_grad[3]
        q_grad, k_grad, v_grad, total_grad = (torch.zeros_like(x) for x in (q, k, v, total))
        learned_grads = [torch.zeros_like(x) for x in learned]
        decay = block_decay(blocks, decays).to(v)
        pairs = torch.zeros_like(decay, dtype=wide(v))
        there = Scans(blocks, decays, v, for_factors)
        back = Scans(blocks, (decays[0].transposed(), decays[1].transposed()), v)
        kept: list[tuple[Recomputed, Recomputed]] | None = [] if features_fit(q, source) else None
        for sweep, y in sweeps(bands):
            if sweep == 1 and kept is not None:
                queries, keys = kept.pop()
            else:
                queries = Recomputed(source.queries, flat(q[y]))
                keys = Recomputed(source.keys, flat(k[y]), None if masked is None else flat(masked[y]))
            fq, fk, values, g = queries.features, keys.features, flat(v[y]), flat(gradient[y, ..., :width])
            columns = flat(gradient[y, ..., -total.shape[-1] :])  # [X, B, h w, .]
            if sweep == 0:
                scores, inner = fq @ fk.mT, g @ values.mT  # [X, B, h w, h w]
                if for_factors:
                    pairs += (scores * inner).sum((0, 1))
                scores, inner = scores.mul_(decay), inner.mul_(decay)
                queries.grad, keys.grad = (inner @ fk).add_(columns @ total.mT), inner.mT @ fq
                v_grad[y] = (scores.mT @ g).view(v[y].shape)
                total_grad += (fq.mT @ columns).sum(0)  # [B, m, .]
            elif kept is None:
                queries.grad, keys.grad = torch.zeros_like(fq), torch.zeros_like(fk)
            if not ctx.has_key_sums and (sweep == 1 or bands == 1):
                keys.grad += total_grad.mT
            fq, fk, g, for_queries, for_keys = (
                x.view(*v[y].shape[:-1], -1) for x in (fq, fk, g, queries.grad, keys.grad)
            )
            for scan, transposed in zip(there.of_sweep(sweep), back.of_sweep(sweep), strict=True):
                scan.visit(y, v[y], fk, [Readout(g, for_queries, True, fq if for_factors else None)], (g, fq))
                to_keys = Readout(v[y], for_keys, True, fk if for_factors else None)
                transposed.visit(y, g, fq, [to_keys, Readout(fk, v_grad[y], False)])
            if sweep == 0 and bands > 1 and kept is not None:
                kept.append((queries, keys))
                continue
            q_grad[y] += queries.backward(learned, learned_grads).view(q[y].shape)
            k_grad[y] += keys.backward(learned, learned_grads).view(k[y].shape)
        factors_grad = None
        if for_factors:
            factors_grad = scans_gradient(there, back).add_(block_gradient(blocks, decays, pairs)).to(log_factors)
        key_sums_grad = total_grad if ctx.has_key_sums else None
        return None, None, None, factors_grad, None, q_grad, k_grad, v_grad, key_sums_grad, *learned_grads


def sweeps(bands: int) -> list[tuple[int, int]]:
    """Return the bands of both sweeps in order, (0, y) from above and (1, y) from below; one band has one sweep."""
    up = range(bands - 1, -1, -1) if bands > 1 else ()
    return [*((0, y) for y in range(bands)), *((1, y) for y in up)]


def features_fit(x: Tensor, source: FeatureSource) -> bool:
    """Return whether the features of all tokens [Y, X, B, h, w, .] may be in memory, so that they are computed once."""
    return x[..., 0].numel() * source.size <= chunk_features(x.device)


def flat(x: Tensor) -> Tensor:
    """Return the tokens of a band in one axis, as feature maps take them: [X, B, h, w, c] -> [X, B, h w, c]."""
    return x.flatten(2, 3)


def scans_gradient(there: Scans, back: Scans) -> Tensor:
    """Return the gradients of the logarithms of the factors from outside of blocks: [2, 2], as `block_gradient`.

    Args:
        there, back: scans, and scans with targets and sources exchanged.
    """
    total = torch.zeros(2, 2, dtype=torch.float64)
    for axis, (scans, transposed) in enumerate(((there.vertical, back.vertical), (there.horizontal, back.horizontal))):
        for side, (scan, other) in enumerate(zip(scans, transposed, strict=True)):
            # Forward, sources of `scan` are before their targets, and i - j is the number of steps. In the transposed
            # scan sources are the i and targets the j, so that there it is j - i.
            sign = 1 - 2 * side
            total[axis, side] += sign * float(scan.moment)
            total[axis, 1 - side] += sign * float(other.moment)
            total[1 - axis] += scan.across_gradient()
    return total


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
    outs = []
    numbers = log_factors.detach().flatten(1).tolist()  # [H, 4]
    for h, head in enumerate(inputs.each_head(blocks.split, blocks.are_full)):
        decays = (AxisDecay(*numbers[h][:2]), AxisDecay(*numbers[h][2:]))
        outs.append(blocks.join(_BlockSum.apply(head.source, blocks, decays, log_factors[h], *head.tensors)))
    return torch.stack(outs, dim=1)
