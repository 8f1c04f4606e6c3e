"""Value maps by name: what is done to the values of attention before the sum over keys, after it, or beside it.

Attention is linear in its values, o = A v, whatever A is: softmax, linear in N, masked or attenuated by distance. A
value map wraps it from outside, so that attention knows nothing of it. Gates, group actions and connections are
RiemannFormer's (arXiv:2506.07405). Only its abstracts and the text beside its released code were at hand. The forms
here are the plainest of what they name.
"""

from __future__ import annotations

from typing import Any

from performer_string.layers.values.base import ValueMap
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
}


def build_value_map(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    grid: tuple[int, ...] | None = None,
    **options: Any,
) -> ValueMap:
    """Build a value map by its name in `VALUE_MAPS`.

    Args:
        head_dim, num_heads: of the attention that it wraps.
        coord_dim: dimension of the positions.
        grid: the training grid, for encodings that need it.
        options: its own, as its docstring lists them.

    Raises:
        ValueError: an unknown name or option, with the nearest known one.
    """
    sizes = Sizes(head_dim, num_heads, coord_dim, grid)
    return construct("value map", name, lookup("value map", name, VALUE_MAPS), options, sizes=sizes)
