"""Locality focusing in linear time: which of two ways a head goes, by what each is predicted to cost.

A decay is exact as a function of distance and, to sufficient accuracy, a mixture of Gaussians. Its wide components can
go through a grid of nodes (`grid`), the rest through a window (`window`), which then takes the decay
less what the grid has given. A `Split` says how; a decay lists those that keep its error within bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.bias.linear_time.bilateral_grid import LEAST_BLOCK, cells_behind, cells_of, grid_sum
from performer_string.bias.linear_time.recompute import (
    FeatureSource,
    RecomputedFeatures,
    key_sums,
    largest_scale,
    slab_size,
)
from performer_string.bias.linear_time.tiles import products, radius_in_tokens
from performer_string.bias.linear_time.window import window_sum
from performer_string.feature_maps import FeatureMap
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.numerics import safe_divide

# Of the predicted cost, in multiplications: moving a number to or from memory is worth this many, measured on a CPU.
MEMORY = 30.0


@dataclass(frozen=True)
class Split:
    """One way to sum a head's decay.

    Attributes:
        radius: of the window, in patches; None for no window.
        spacing: of the nodes at most, in patches; None for no grid.
        first: the components from here on go through the grid.
    """

    radius: float | None
    spacing: float | None
    first: int


class Mixture(Protocol):
    """What focusing asks of a kernel of the offset.

    Attributes:
        normalised: whether the denominator sees it too.
    """

    normalised: bool

    def components(self) -> tuple[Tensor, Tensor]:
        """Amplitudes and widths of its Gaussians, [H, G] each, widths rising."""
        ...

    def of_heads(self, offsets: Tensor) -> Tensor:
        """lambda(r), exact: [..., C] -> [H, ...]."""
        ...

    def splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """The ways to sum it within bounds, for a head of these widths and a grid of `dim` axes."""
        ...


@dataclass(frozen=True)
class Plan:
    """A split in tokens of a grid. Heads of the same plan are computed together."""

    radius: Triple | None
    cell: Triple | None
    first: int

    def cost(self, grid: Grid, features: int, width: int, components: int) -> float:
        """Predicted, in multiplications, of one head."""
        cost = 0.0
        if self.radius is not None:
            cost += products(grid, self.radius) * (features + width + 2 * MEMORY)
        if self.cell is not None:
            nodes = cells_behind(grid, self.cell).nodes
            corners = 2 ** sum(n > 1 for n in grid.shape)
            count = nodes[0] * nodes[1] * nodes[2]
            cost += 2 * grid.tokens * features * (corners * width + MEMORY * width / LEAST_BLOCK)
            cost += count * features * width * MEMORY * (2 * corners + 3 * (components - self.first))
        return cost


def plan_of(split: Split, grid: Grid) -> Plan:
    return Plan(
        None if split.radius is None else radius_in_tokens(split.radius, grid),
        None if split.spacing is None else cells_of(split.spacing, grid),
        split.first,
    )


def choose(decay: Mixture, grid: Grid, features: int, width: int) -> list[Plan]:
    """The cheapest plan for each head."""
    chosen = []
    for head, widths in enumerate(decay.components()[1].tolist()):
        if not all(map(math.isfinite, widths)):
            raise ValueError(
                f"{type(decay).__name__}: the widths of head {head} have to be finite, and are {widths}. Weights that "
                f"went bad in training? Load an earlier checkpoint."
            )
        plans = [plan_of(split, grid) for split in decay.splits(widths, grid.dim)]
        if grid.tokens == 1:
            plans = [Plan((0, 0, 0), None, len(widths))]
        chosen.append(min(plans, key=lambda plan: plan.cost(grid, features, width, len(widths))))
    return chosen


def decayed_attention(
    decay: Mixture,
    phi: FeatureMap,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor | None,
    grid: Grid,
    num_prefix: int,
) -> Tensor:
    """Linear attention with a decay in its numerator, and denominator if it is normalised, without the features of
    all tokens. [B, H, N, d]

    Args:
        q, k, v: [B, H, N, d], in the type of the features.
        masked: masked keys, [B, 1, N, 1].
        grid: of the tokens behind the first `num_prefix`.
    """
    scale = largest_scale(phi, k, masked)
    source = RecomputedFeatures(phi, scale, list(range(k.shape[1])))
    if decay.normalised:
        v = F.pad(v, (0, 1), value=1.0)

    def divided(out: Tensor) -> Tensor:  # [B, H, N, d + 1], or d + 2 of which the sum without lambda comes last
        out = out[..., :-1] if decay.normalised else out
        return safe_divide(out[..., :-1], out[..., -1:])

    if not num_prefix:
        return divided(decayed_sum(decay, source, q, k, v, grid, masked))
    sums = key_sums(source, k, F.pad(v, (0, 1), value=1.0), masked)  # [B, H, m, d + 1]
    sizes = (num_prefix, grid.tokens)
    (q0, q), (k0, k), (v0, v) = (x.split(sizes, dim=2) for x in (q, k, v))
    hidden0, masked = (None, None) if masked is None else masked.split(sizes, dim=2)
    own = torch.cat([source.keys(k0, hidden0).mT @ v0, sums[..., -1:]], dim=-1)  # what placed tokens get from k0
    out = torch.cat([source.queries(q0) @ sums, decayed_sum(decay, source, q, k, v, grid, masked, own)], dim=2)
    return divided(out)


def decayed_sum(
    decay: Mixture,
    source: FeatureSource,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Grid,
    masked: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """phi(q_i)^T sum_j lambda(p_i - p_j) phi(k_j) v_j^T over a grid, and phi(q_i)^T sum_j phi(k_j) as one column
    more, in time linear in its tokens: [B, H, N, d + 1].

    Args:
        source: of the features of all heads.
        q, k: what the source makes features of, [B, H, N, .].
        v: [B, H, N, d].
        masked: masked keys, [B, 1, N, 1].
        sums: over keys that lambda does not reach: phi(q_i)^T sums is added, [B, H, m, d + 1], and its last column is
            the sum over all keys; or that column alone, [B, H, m, 1].
    """
    heads: dict[int, Tensor] = {}
    per_head = [x.unbind(1) for x in (q, k, v)]  # not indexing, whose gradient is as large as all heads for each
    for plan, members in jobs(decay, source, grid, v):
        whole = len(members) == q.shape[1]
        q_own, k_own, v_own = (q, k, v) if whole else (torch.stack([x[h] for h in members], dim=1) for x in per_head)
        own, far = source if whole else source.of(members), None if sums is None else sums[:, members]
        out = _decayed_sum(decay, own, q_own, k_own, v_own, grid, plan, members, masked, far)
        if whole:
            return out
        for h, x in zip(members, out.unbind(1), strict=True):
            heads[h] = x
    return torch.stack([heads[h] for h in range(q.shape[1])], dim=1)


def jobs(decay: Mixture, source: FeatureSource, grid: Grid, v: Tensor) -> list[tuple[Plan, list[int]]]:
    """Heads of the same plan: as many together as fit into one slab, or have room for a window's rows and twice as many
    around them."""
    plans = choose(decay, grid, source.size, v.shape[-1])
    found = []
    for plan in dict.fromkeys(plans):
        members = [h for h, other in enumerate(plans) if other == plan]
        row, room = len(v) * grid.shape[1] * grid.shape[2] * source.size, slab_size(v.device)
        rows = grid.shape[0]
        if plan.radius is not None and row * rows > room:
            rows = min(rows, 6 * plan.radius[0] + 1)
        together = len(members) if plan.radius is None else max(1, room // (row * rows))
        found += [(plan, members[i : i + together]) for i in range(0, len(members), together)]
    return found


def _decayed_sum(
    decay: Mixture,
    source: FeatureSource,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Grid,
    plan: Plan,
    heads: list[int],
    masked: Tensor | None,
    sums: Tensor | None,
) -> Tensor:
    """`decayed_sum` of heads that share a plan."""
    amplitudes, widths = (x[heads].to(v) for x in decay.components())
    wide = amplitudes[:, plan.first :], widths[:, plan.first :]  # [H, G'] each

    def near(offsets: Tensor) -> Tensor:
        kernel = decay.of_heads(offsets[..., : grid.dim])[heads]
        if plan.cell is not None:
            squares = offsets.square().sum(-1)
            for a, s in zip(wide[0].unbind(-1), wide[1].unbind(-1), strict=True):
                view = (-1, *[1] * squares.ndim)
                kernel = kernel - a.view(view) * (-squares / (2 * s.view(view).square())).exp()
        return kernel

    if plan.radius is None:
        assert plan.cell is not None
        return grid_sum(source, q, k, v, *wide, grid, plan.cell, masked, sums)
    if sums is None and slab_size(v.device) < q.shape[0] * q.shape[1] * q.shape[2] * source.size:
        sums = key_sums(source, k, v.new_ones(1, 1, 1, 1).expand(*v.shape[:-1], 1), masked)
    out = window_sum(source, q, k, v, near, grid, plan.radius, masked, sums)
    if plan.cell is None:
        return out
    far = grid_sum(source, q, k, v, *wide, grid, plan.cell, masked)
    return torch.cat([out[..., :-1] + far[..., :-1], out[..., -1:]], dim=-1)
