"""Value maps by name: operations on the values of attention before the sum over keys, after it, or added to it.

Attention is linear in its values, o = A v, for any weights A. A value map is a function of A as an operator, so that
attention needs no code for it. Gates, group actions and connections are RiemannFormer's (arXiv:2506.07405). Its text
was available without its formulas. The forms here are the simplest that fit it.
"""

from __future__ import annotations

from typing import Any

from performer_string.layers.values.base import ValueMap
from performer_string.layers.values.composed import ComposedValues
from performer_string.layers.values.gating import FiberGating, MetricGating
from performer_string.layers.values.lepe import LocalEnhancement
from performer_string.layers.values.transport import Connection, GroupAction
from performer_string.position.base import Sizes
from performer_string.utils.registry import construct, lookup

__all__ = ["VALUE_MAPS", "ValueMap", "build_value_map"]

VALUE_MAPS: dict[str, type[ValueMap]] = {
    "gating": FiberGating,
    "metric-gating": MetricGating,
    "group-action": GroupAction,
    "connection": Connection,
    "lepe": LocalEnhancement,
    "composed": ComposedValues,
}


def build_value_map(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    grid: tuple[int, ...] | None = None,
    qk_dim: int | None = None,
    **options: Any,
) -> ValueMap:
    """Build a value map by its name in `VALUE_MAPS`.

    Args:
        name: name of the value map: `gating`, `metric-gating`, `group-action`, `connection`, `lepe`, or `composed` of
            several.
        head_dim, num_heads: width d and number H of heads of the attention.
        coord_dim: dimension C of the positions.
        grid: training grid, for encodings that need it.
        qk_dim: width of queries and keys; None for d.
        options: options of the class in `VALUE_MAPS`, as its docstring lists them: `FiberGating` and `MetricGating` in
            `gating.py`, `GroupAction` and `Connection` in `transport.py`, `LocalEnhancement` in `lepe.py`,
            `ComposedValues` in `composed.py`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one.
    """
    sizes = Sizes(head_dim, num_heads, coord_dim, grid, qk_dim=qk_dim)
    return construct("value map", name, lookup("value map", name, VALUE_MAPS), options, sizes=sizes)
