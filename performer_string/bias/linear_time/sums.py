"""Linear attention with a relative bias over a grid: heads by plan, prefix tokens and the denominator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.bias.linear_time.bilateral_grid import by_axis, grid_sum
from performer_string.bias.linear_time.block_sum import block_sum
from performer_string.bias.linear_time.inputs import SumInputs
from performer_string.bias.linear_time.narrow_windows import NarrowWindows
from performer_string.bias.linear_time.plan import Plan, choose_plans, group_heads
from performer_string.bias.linear_time.recompute import (
    RecomputedFeatures,
    StoredFeatures,
    chunk_features,
    largest_scale,
)
from performer_string.bias.linear_time.whole_tiles import make_tiles
from performer_string.bias.linear_time.window import Windows, window_sum
from performer_string.feature_maps import FeatureMap
from performer_string.ops.layout import Grid, TokenLayout, Triple
from performer_string.utils.numerics import safe_divide

if TYPE_CHECKING:
    from performer_string.bias.base import RelativeBias


def decayed_attention(
    bias: RelativeBias, phi: FeatureMap, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, grid: Grid
) -> Tensor:
    """Return linear attention with a relative bias; of many features a few samples and a chunk of tokens at a time.

    Args:
        bias: relative bias lambda, in the numerator, and in the denominator if it is normalised.
        phi: feature map.
        q, k, v: rotated queries, rotated keys and values, [B, H, N, d].
        layout: layout of the tokens.
        grid: grid of the tokens after the prefix.

    Returns:
        Outputs, [B, H, N, d], in the type of the features.
    """
    if k[..., 0].numel() * phi.num_features <= chunk_features(k.device):
        fq, fk = phi.pair(q, k, layout.mask)
        inputs = SumInputs(StoredFeatures(phi.num_features), fq, fk, v.to(fk.dtype), grid)
        return _attend_group(inputs, bias, layout.num_prefix)
    dtype = torch.promote_types(k.dtype, torch.float32)
    products = torch.bfloat16 if v.dtype == torch.bfloat16 else dtype
    samples = max(1, chunk_features(k.device) // (k.shape[1] * k.shape[2] * phi.num_features))
    # The gradient of each slice would be as large as all samples; that of a split is not.
    groups = [x.to(dtype).split(samples) for x in (q, k, v)]
    masks = [None] * len(k) if layout.mask is None else (~layout.mask)[:, None, :, None].split(samples)
    outs = []
    for q, k, v, masked in zip(*groups, masks, strict=False):
        source = RecomputedFeatures(phi, largest_scale(phi, k, masked))
        inputs = SumInputs(source, q, k, v, grid, masked, products=products)
        outs.append(_attend_group(inputs, bias, layout.num_prefix))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _attend_group(inputs: SumInputs, bias: RelativeBias, num_prefix: int) -> Tensor:
    """Return `decayed_attention` of samples whose chunks are in memory together.

    Args:
        inputs: inputs with the prefix tokens before those of the grid.
        bias: relative bias lambda.
        num_prefix: number of leading tokens without a position.
    """
    if bias.normalised:
        inputs = replace(inputs, v=F.pad(inputs.v, (0, 1), value=1.0))
    if num_prefix:
        source, q, k, v, masked = inputs.source, inputs.q, inputs.k, inputs.v, inputs.masked
        key_sums = source.sum_keys(k, F.pad(v, (0, 1), value=1.0), masked)  # [B, H, m, d + 1]
        sizes = (num_prefix, inputs.grid.tokens)
        (q_prefix, q), (k_prefix, k), (v_prefix, v) = (x.split(sizes, dim=2) for x in (q, k, v))
        masked_prefix, masked = (None, None) if masked is None else masked.split(sizes, dim=2)
        from_prefix = source.keys(k_prefix, masked_prefix).mT @ v_prefix
        from_prefix = torch.cat([from_prefix, key_sums[..., -1:]], dim=-1)
        patches = decayed_sum(bias, replace(inputs, q=q, k=k, v=v, masked=masked, key_sums=from_prefix))
        out = torch.cat([source.queries(q_prefix) @ key_sums, patches], dim=2)
    else:
        out = decayed_sum(bias, inputs)
    if bias.normalised:  # [B, H, N, d + 2]: values, the sum with lambda, and the sum without it
        out = out[..., :-1]
    return safe_divide(out[..., :-1], out[..., -1:])


def decayed_sum(bias: RelativeBias, inputs: SumInputs) -> Tensor:
    """Return sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j over a grid, with one more column.

    Args:
        bias: relative bias lambda.
        inputs: tokens and values of all heads.

    Returns:
        Sums, [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    outs: dict[int, Tensor] = {}
    components, size, v = bias.components(), inputs.source.size, inputs.v
    for plan, heads in group_heads(choose_plans(bias, inputs.grid, size, v.shape[-1]), inputs.grid, size, v):
        out = _sum_by_plan(inputs.select_heads(heads), bias, components, plan, heads)
        if len(heads) == inputs.heads:
            return out
        outs.update(zip(heads, out.unbind(1), strict=True))
    return torch.stack([outs[h] for h in range(inputs.heads)], dim=1)


def _sum_by_plan(
    inputs: SumInputs, bias: RelativeBias, components: tuple[Tensor, Tensor], plan: Plan, heads: list[int]
) -> Tensor:
    """Return `decayed_sum` of heads that share a plan; the inputs have these heads alone."""
    grid, v = inputs.grid, inputs.v
    if plan.blocks is not None:
        rates = bias.rates()
        assert rates is not None
        return block_sum(inputs, rates[heads].to(v), plan.blocks)
    amplitudes, widths = (x[heads, plan.first :].to(v) for x in components)  # components that go through nodes, [H, G']
    widths = by_axis(widths, grid.dim)  # [H, G', C]
    if plan.radius is None:
        assert plan.cell is not None
        return grid_sum(inputs, amplitudes, widths, plan.cell)
    several_chunks = chunk_features(v.device) < v[..., 0].numel() * inputs.source.size
    if inputs.key_sums is None and several_chunks:
        ones = v.new_ones(1, 1, 1, 1).expand(*v.shape[:-1], 1)
        inputs = replace(inputs, key_sums=inputs.source.sum_keys(inputs.k, ones, inputs.masked))

    def window_bias(offsets: Tensor) -> Tensor:
        """Return lambda less the part that goes through nodes, [..., 3] -> [H, ...]."""
        offsets = offsets[..., : grid.dim]
        rest, view = bias.per_head(offsets)[heads], (-1, *[1] * (offsets.ndim - 1))
        for a, w in zip(amplitudes.unbind(1), widths.unbind(1), strict=True) if plan.cell is not None else ():
            scaled = offsets.square() / (2 * w.square()).view(*view, grid.dim)  # [H, ..., C]
            rest = rest - a.view(view) * (-scaled.sum(-1)).exp()
        return rest

    out = window_sum(inputs, window_bias, choose_windows(inputs, plan.radius))
    if plan.cell is None:
        return out
    nodes = grid_sum(replace(inputs, key_sums=None), amplitudes, widths, plan.cell)
    return torch.cat([out[..., :-1] + nodes[..., :-1], out[..., -1:]], dim=-1)


def choose_windows(inputs: SumInputs, radius: Triple) -> Windows:
    """Return the windows of a radius in tokens: of whole tiles on a GPU, where few large products are fastest."""
    tiles = make_tiles(inputs.grid, radius, inputs.products) if inputs.v.device.type != "cpu" else None
    return NarrowWindows(inputs.grid, radius) if tiles is None else tiles
