"""What may be done to the values of attention: before the sum over keys, to its result after it, and beside it.

Attention is linear in its values, o = A v, whatever A is: softmax, linear in N, masked or attenuated by distance. The
structures here wrap it from outside, so that none of those has to know of them. Of RiemannFormer (arXiv:2506.07405),
the source of gates and turns, only the abstracts and the text beside its released code were at hand: those forms are
the plainest of what they name.
"""

from __future__ import annotations

from typing import Any

from performer_string.choices import construct, lookup
from performer_string.encodings.base import Sizes
from performer_string.values.base import Surroundings, ValueMap
from performer_string.values.gating import FiberGating, MetricGating
from performer_string.values.lepe import LocalEnhancement
from performer_string.values.turned import Connection, GroupAction

__all__ = ["VALUE_MAPS", "Surroundings", "ValueMap", "build_value_map"]

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
    """A structure on the values by its name in `VALUE_MAPS`.

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
