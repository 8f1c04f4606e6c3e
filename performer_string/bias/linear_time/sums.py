"""Linear attention with a relative bias over a grid: heads by plan, prefix tokens and the denominator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.bias.linear_time.bilateral_grid import by_axis, grid_sum
from performer_string.bias.linear_time.block_sum import block_sum
from performer_string.bias.linear_time.neighbour_tiles import make_tiling
from performer_string.bias.linear_time.neighbours import neighbour_sum, prefers_neighbours
from performer_string.bias.linear_time.plan import Plan, choose, group_heads
from performer_string.bias.linear_time.recompute import (
    FeatureSource,
    RecomputedFeatures,
    largest_scale,
    slab_size,
    sum_keys,
)
from performer_string.bias.linear_time.window import window_sum
from performer_string.feature_maps import FeatureMap
from performer_string.ops.layout import Grid, TokenLayout
from performer_string.utils.numerics import safe_divide

if TYPE_CHECKING:
    from performer_string.bias.base import RelativeBias


def decayed_attention(
    bias: RelativeBias, phi: FeatureMap, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, grid: Grid
) -> Tensor:
    """Return linear attention with a relative bias, a few samples and a slab of tokens at a time.

    Args:
        bias: lambda, in the numerator, and in the denominator if it is normalised.
        phi: the feature map.
        q, k, v: [B, H, N, d], queries and keys rotated.
        layout: of the tokens.
        grid: of the tokens behind the prefix.

    Returns:
        [B, H, N, d], in the type of the features.
    """
    dtype = torch.promote_types(k.dtype, torch.float32)
    products = torch.bfloat16 if v.dtype == torch.bfloat16 else dtype
    samples = max(1, slab_size(k.device) // (k.shape[1] * k.shape[2] * phi.num_features))
    # The gradient of each slice would be as large as all samples; that of a split is not.
    groups = [x.to(dtype).split(samples) for x in (q, k, v)]
    masked = [None] * len(k) if layout.mask is None else (~layout.mask)[:, None, :, None].split(samples)
    outs = []
    for group_q, group_k, group_v, group_masked in zip(*groups, masked, strict=False):
        outs.append(
            _attend_group(bias, phi, group_q, group_k, group_v, group_masked, grid, layout.num_prefix, products)
        )
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _attend_group(
    bias: RelativeBias,
    phi: FeatureMap,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor | None,
    grid: Grid,
    num_prefix: int,
    products: torch.dtype,
) -> Tensor:
    """Return `decayed_attention` of samples whose slabs are in memory together.

    `masked` is [B, 1, N, 1], and `products` the type of operands as of `decayed_sum`.
    """
    source = RecomputedFeatures(phi, largest_scale(phi, k, masked), list(range(k.shape[1])))
    if bias.normalised:
        v = F.pad(v, (0, 1), value=1.0)
    if num_prefix:
        key_sums = sum_keys(source, k, F.pad(v, (0, 1), value=1.0), masked)  # [B, H, m, d + 1]
        sizes = (num_prefix, grid.tokens)
        (q_prefix, q), (k_prefix, k), (v_prefix, v) = (x.split(sizes, dim=2) for x in (q, k, v))
        masked_prefix, masked = (None, None) if masked is None else masked.split(sizes, dim=2)
        from_prefix = source.keys(k_prefix, masked_prefix).mT @ v_prefix
        from_prefix = torch.cat([from_prefix, key_sums[..., -1:]], dim=-1)
        patches = decayed_sum(bias, source, q, k, v, grid, masked, from_prefix, products)
        out = torch.cat([source.queries(q_prefix) @ key_sums, patches], dim=2)
    else:
        out = decayed_sum(bias, source, q, k, v, grid, masked, products=products)
    if bias.normalised:  # [B, H, N, d + 2]: values, the sum with lambda, and the sum without it
        out = out[..., :-1]
    return safe_divide(out[..., :-1], out[..., -1:])


def decayed_sum(
    bias: RelativeBias,
    source: FeatureSource,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Grid,
    masked: Tensor | None = None,
    key_sums: Tensor | None = None,
    products: torch.dtype | None = None,
) -> Tensor:
    """Return sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j over a grid, and one column more.

    Args:
        bias: lambda.
        source: of the features of all heads.
        q, k: what the source computes features of, [B, H, N, .].
        v: [B, H, N, d].
        grid: of the tokens.
        masked: True for masked keys, [B, 1, N, 1].
        key_sums: sums over keys without lambda. [B, H, m, d + 1]: phi(q_i)^T key_sums is added, and its last column is
            the sum over all keys. [B, H, m, 1]: that column alone. None: the sum over the keys k.
        products: type of the operands of matrix products between neighbouring tiles on a GPU; that of v by default.

    Returns:
        [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    outs: dict[int, Tensor] = {}
    per_head = [x.unbind(1) for x in (q, k, v)]  # not indexing, whose gradient is as large as all heads for each
    components = bias.components()
    for plan, heads in group_heads(choose(bias, grid, source.size, v.shape[-1]), grid, source.size, v):
        if len(heads) == q.shape[1]:
            return _sum_by_plan(bias, components, source, q, k, v, grid, plan, heads, masked, key_sums, products)
        group_q, group_k, group_v = (torch.stack([x[h] for h in heads], dim=1) for x in per_head)
        group_sums = None if key_sums is None else key_sums[:, heads]
        group_source = source.select_heads(heads)
        out = _sum_by_plan(
            bias, components, group_source, group_q, group_k, group_v, grid, plan, heads, masked, group_sums, products
        )
        for h, x in zip(heads, out.unbind(1), strict=True):
            outs[h] = x
    return torch.stack([outs[h] for h in range(q.shape[1])], dim=1)


def _sum_by_plan(
    bias: RelativeBias,
    components: tuple[Tensor, Tensor],
    source: FeatureSource,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Grid,
    plan: Plan,
    heads: list[int],
    masked: Tensor | None,
    key_sums: Tensor | None,
    products: torch.dtype | None,
) -> Tensor:
    """Return `decayed_sum` of some heads, which share a plan and are all that q, k, v and the source have."""
    amplitudes, widths = (x[heads, plan.first :].to(v) for x in components)  # of what goes through nodes, [H, G']
    widths = by_axis(widths, grid.dim)  # [H, G', C]

    def window_bias(offsets: Tensor) -> Tensor:
        """Return lambda less what goes through nodes, [..., 3] -> [H, ...]."""
        rest = bias.per_head(offsets[..., : grid.dim])[heads]
        if plan.cell is not None:
            squares = offsets.square()[..., : grid.dim]
            for a, s in zip(amplitudes.unbind(-1), widths.unbind(1), strict=True):
                view = (-1, *[1] * (squares.ndim - 1))
                scaled = [
                    x / (2 * w.view(view).square()) for x, w in zip(squares.unbind(-1), s.unbind(-1), strict=True)
                ]
                rest = rest - a.view(view) * (-torch.stack(scaled).sum(0)).exp()
        return rest

    if plan.blocks is not None:
        rates = bias.rates()
        assert rates is not None
        return block_sum(source, q, k, v, rates[heads].to(v), grid, plan.blocks, masked, key_sums)
    if plan.radius is None:
        assert plan.cell is not None
        return grid_sum(source, q, k, v, amplitudes, widths, grid, plan.cell, masked, key_sums)
    several_slabs = slab_size(v.device) < q.shape[0] * q.shape[1] * q.shape[2] * source.size
    if key_sums is None and several_slabs:
        key_sums = sum_keys(source, k, v.new_ones(1, 1, 1, 1).expand(*v.shape[:-1], 1), masked)
    tiling = make_tiling(grid, plan.radius) if prefers_neighbours(v.device) else None
    if tiling is None:
        out = window_sum(source, q, k, v, window_bias, grid, plan.radius, masked, key_sums)
    else:
        out = neighbour_sum(source, q, k, v, window_bias, grid, tiling, masked, key_sums, products)
    if plan.cell is None:
        return out
    nodes = grid_sum(source, q, k, v, amplitudes, widths, grid, plan.cell, masked)
    return torch.cat([out[..., :-1] + nodes[..., :-1], out[..., -1:]], dim=-1)
