"""Locality focusing in linear time: which of two ways a head goes, by what each is predicted to cost.

A decay is exact as a function of distance and, to sufficient accuracy, a mixture of Gaussians. Its wide components can
go through a grid of nodes (`focusing_grid`), the rest through a window (`focusing_window`), which then takes the decay
less what the grid has given. A `Split` says how; a decay lists those that keep its error within bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from performer_string.focusing_grid import LEAST_BLOCK, cells_of, grid_sum, nodes_of
from performer_string.focusing_window import products, radius_in_tokens, window_sum
from performer_string.lattice import Lattice, Triple

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
    """What focusing asks of a decay."""

    def components(self) -> tuple[Tensor, Tensor]:
        """Amplitudes and widths of its Gaussians, [H, G] each, widths rising."""
        ...

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """lambda(r), exact: [..., C] -> [H, ...]."""
        ...

    def splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """The ways to sum it within bounds, for a head of these widths and a grid of `dim` axes."""
        ...


@dataclass(frozen=True)
class Plan:
    """A split in tokens of a lattice. Heads of the same plan are computed together."""

    radius: Triple | None
    cell: Triple | None
    first: int

    def cost(self, lattice: Lattice, features: int, width: int, components: int) -> float:
        """Predicted, in multiplications, of one head."""
        cost = 0.0
        if self.radius is not None:
            cost += products(lattice, self.radius) * (features + width + 2 * MEMORY)
        if self.cell is not None:
            nodes = nodes_of(lattice, self.cell)
            corners = 2 ** sum(n > 1 for n in lattice.shape)
            count = nodes[0] * nodes[1] * nodes[2]
            cost += 2 * lattice.tokens * features * (corners * width + MEMORY * width / LEAST_BLOCK)
            cost += count * features * width * MEMORY * (2 * corners + 3 * (components - self.first))
        return cost


def plan_of(split: Split, lattice: Lattice) -> Plan:
    return Plan(
        None if split.radius is None else radius_in_tokens(split.radius, lattice),
        None if split.spacing is None else cells_of(split.spacing, lattice),
        split.first,
    )


def choose(decay: Mixture, lattice: Lattice, features: int, width: int) -> list[Plan]:
    """The cheapest plan for each head."""
    chosen = []
    for widths in decay.components()[1].tolist():
        plans = [plan_of(split, lattice) for split in decay.splits(widths, lattice.dim)]
        if lattice.tokens == 1:
            plans = [Plan((0, 0, 0), None, len(widths))]
        chosen.append(min(plans, key=lambda plan: plan.cost(lattice, features, width, len(widths))))
    return chosen


def focus(decay: Mixture, fq: Tensor, fk: Tensor, v: Tensor, lattice: Lattice) -> Tensor:
    """sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j over the tokens of a lattice, in time linear in their number.

    Args:
        fq, fk: features [B, H, N, m].
        v: [B, H, N, d].
    """
    plans = choose(decay, lattice, fq.shape[-1], v.shape[-1])
    groups = {plan: [h for h, other in enumerate(plans) if other == plan] for plan in plans}
    if len(groups) == 1:
        return _focus(decay, fq, fk, v, lattice, plans[0], list(range(len(plans))))
    heads: list[Tensor | None] = [None] * len(plans)
    per_head = [x.unbind(1) for x in (fq, fk, v)]  # not indexing, whose gradient is as large as all heads for each
    for plan, members in groups.items():
        q, k, values = (torch.stack([x[h] for h in members], dim=1) for x in per_head)
        for h, out in zip(members, _focus(decay, q, k, values, lattice, plan, members).unbind(1), strict=True):
            heads[h] = out
    return torch.stack([out for out in heads if out is not None], dim=1)


def _focus(decay: Mixture, fq: Tensor, fk: Tensor, v: Tensor, lattice: Lattice, plan: Plan, heads: list[int]) -> Tensor:
    """`focus` of the heads that share a plan."""
    amplitudes, widths = (x[heads].to(fq.dtype) for x in decay.components())
    wide = amplitudes[:, plan.first :], widths[:, plan.first :]  # [H, G'] each

    def near(offsets: Tensor) -> Tensor:
        kernel = decay.of_offsets(offsets)[heads]
        if plan.cell is not None:
            squares = offsets.square().sum(-1)
            for a, s in zip(wide[0].unbind(-1), wide[1].unbind(-1), strict=True):
                view = (-1, *[1] * squares.ndim)
                kernel = kernel - a.view(view) * (-squares / (2 * s.view(view).square())).exp()
        return kernel

    parts = []
    if plan.radius is not None:
        parts.append(window_sum(fq, fk, v, near, lattice, plan.radius))
    if plan.cell is not None:
        parts.append(grid_sum(fq, fk, v, *wide, lattice, plan.cell))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]
