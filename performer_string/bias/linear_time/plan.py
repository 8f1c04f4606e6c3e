"""The choice between a window and coarse nodes for each head, by the predicted cost of both.

A decay is exact as a function of distance and, to sufficient accuracy, a mixture of Gaussians. Its wide components can
go through coarse nodes (`bilateral_grid`), the rest through a window (`window`). The window then sums the decay less
the part that goes through nodes. A decay lists the `Split`s that keep its error within bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from performer_string.bias.linear_time.bilateral_grid import MIN_VALUE_BLOCK, cell_shape, make_cells
from performer_string.bias.linear_time.blocks import Blocks, make_blocks
from performer_string.bias.linear_time.recompute import chunk_features
from performer_string.bias.linear_time.tiles import count_products, radius_in_tokens
from performer_string.bias.widths import check_axes
from performer_string.ops.layout import Grid, Triple
from performer_string.utils.cache import memoized

if TYPE_CHECKING:
    from performer_string.bias.base import RelativeBias, Split

# Predicted cost of moving a number to or from memory, in multiplications, measured on a CPU.
MEMORY_COST = 30.0
# Predicted cost of the carried sum of a lane at each block, besides that of its numbers, and of beginning a head's sum
# by blocks, in multiplications, measured on a CPU.
CALL_COST, BLOCKS_COST = 8e4, 5e6


@dataclass(frozen=True)
class Plan:
    """A split in tokens of a grid. Heads of the same plan are computed together.

    Attributes:
        radius: radius of the window along each axis, in tokens; None without a window.
        cell: number of tokens from node to node along each axis; None without nodes.
        first: index of the first component that goes through the nodes.
        blocks: blocks for the exact sum of a decay with rates, which has neither window nor nodes; None for other sums.
    """

    radius: Triple | None
    cell: Triple | None
    first: int
    blocks: Blocks | None = None


def make_plan(split: Split, grid: Grid) -> Plan | None:
    """Return a split in tokens of a grid; None for blocks on a grid of three axes."""
    if split.block is not None:
        blocks = make_blocks(grid, split.block)
        return None if blocks is None else Plan(None, None, split.first, blocks)
    radius = None if split.radius is None else radius_in_tokens(split.radius, grid)
    cell = None if split.spacing is None else cell_shape(split.spacing, grid)
    return Plan(radius, cell, split.first)


@memoized(1024)
def predicted_cost(plan: Plan, grid: Grid, features: int, width: int, components: int) -> float:
    """Return the predicted cost of one head, in multiplications.

    Args:
        plan: plan of the head.
        grid: grid of the tokens.
        features: number m of features.
        width: width d of the values.
        components: number G of components.
    """
    cost = 0.0
    if plan.blocks is not None:
        cost += block_cost(plan.blocks, features, width)
    if plan.radius is not None:
        cost += count_products(grid, plan.radius) * (features + width + 2 * MEMORY_COST)
    if plan.cell is not None:
        cells = make_cells(grid, plan.cell)
        corners = len(cells.corners)
        cost += 2 * grid.tokens * features * (corners * width + MEMORY_COST * width / MIN_VALUE_BLOCK)
        moves = 2 * corners + 3 * (components - plan.first)
        cost += math.prod(cells.nodes) * features * width * MEMORY_COST * moves
    return cost


def block_cost(blocks: Blocks, features: int, width: int) -> float:
    """Return the predicted cost of the exact sum by blocks, in multiplications; see `predicted_cost`."""
    tokens, state = blocks.places, features * width
    cost = BLOCKS_COST + tokens * blocks.height * blocks.width * (features + width + 2 * MEMORY_COST)
    for size, lanes, steps in ((blocks.height, blocks.width, 0), (blocks.width, blocks.height, 1)):
        if blocks.counts[steps] > 1:  # for each side an update, a product, and the mixing of the lanes' sums
            cost += 2 * tokens * state * (2 + lanes / size) + 2 * tokens / size * (state * MEMORY_COST + CALL_COST)
    return cost


@memoized(1024)
def cheapest_plan(splits: tuple[Split, ...], grid: Grid, features: int, width: int, components: int) -> Plan:
    """Return the plan of the split with the least predicted cost; for the arguments see `predicted_cost`."""
    if grid.tokens == 1:
        return Plan((0, 0, 0), None, components)
    cheapest, least = None, math.inf
    shape = replace(grid, steps=(1.0, 1.0, 1.0))  # costs do not depend on steps, which learned widths may scale
    for split in splits:
        plan = make_plan(split, grid)
        if plan is None:
            continue
        cost = predicted_cost(plan, shape, features, width, components)
        if cost < least:
            cheapest, least = plan, cost
    assert cheapest is not None
    return cheapest


def choose_plans(bias: RelativeBias, grid: Grid, features: int, width: int) -> list[Plan]:
    """Return the cheapest plan for each head.

    Args:
        bias: relative bias, lambda.
        grid: grid of the tokens.
        features: number m of features.
        width: width d of the values.

    Raises:
        ValueError: widths that are not finite, or rates that are no numbers.
    """
    rates = bias.rates()
    if rates is not None and any(math.isnan(rate) for head in rates.flatten(1).tolist() for rate in head):
        raise ValueError(
            f"{type(bias).__name__}: its rates must be numbers, and some are NaN. Weights that went bad in "
            f"training? Load an earlier checkpoint."
        )
    plans, lengths = [], bias.components()[1]  # [H, G] or [H, G, C]
    for head, of_head in enumerate(lengths.tolist()):
        each_axis = of_head if lengths.ndim == 3 else [[width] * grid.dim for width in of_head]
        widths = [axes[0] for axes in each_axis]
        if not all(math.isfinite(width) for axes in each_axis for width in axes):
            raise ValueError(
                f"{type(bias).__name__}: the widths of head {head} must be finite, and are {of_head}. Did the "
                f"training diverge? Load an earlier checkpoint."
            )
        scaled = grid if lengths.ndim == 2 or not widths else scaled_to_first(grid, each_axis[-1])
        plans.append(cheapest_plan(tuple(bias.splits(widths, grid.dim)), scaled, features, width, len(widths)))
    return plans


def scaled_to_first(grid: Grid, widths: list[float]) -> Grid:
    """Return a grid with scaled axes, on which a component with a width for each axis has that of the first on all.

    A plan for it, in tokens, is one for the grid itself. Its costs are the same.

    Raises:
        ValueError: a number of widths other than that of the grid's axes.
    """
    check_axes(len(widths), grid.dim)
    s0, s1, s2 = [step * widths[0] / width for step, width in zip(grid.steps, (*widths, *widths[:1] * 2), strict=False)]
    return replace(grid, steps=(s0, s1, s2))


def group_heads(plans: list[Plan], grid: Grid, features: int, v: Tensor) -> list[tuple[Plan, list[int]]]:
    """Return groups of heads that are computed together: heads of the same plan, as many as one chunk has room for.

    A window needs room for its rows and for twice as many around them; nodes and blocks take one head after
    another anyway.

    Args:
        plans: plan of each head.
        grid: grid of the tokens.
        features: number m of features.
        v: values, [B, H, N, d].
    """
    groups = []
    for plan in dict.fromkeys(plans):
        heads = [h for h, other in enumerate(plans) if other == plan]
        size = len(heads)
        if plan.radius is not None:
            row, room, rows = len(v) * grid.shape[1] * grid.shape[2] * features, chunk_features(v.device), grid.shape[0]
            if row * rows > room:
                rows = min(rows, 6 * plan.radius[0] + 1)
            size = max(1, room // (row * rows))
        groups += [(plan, heads[i : i + size]) for i in range(0, len(heads), size)]
    return groups
