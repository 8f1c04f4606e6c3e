"""Relative biases: factors lambda(p_i - p_j) of the attention weights, by name.

Read `base.py` for the interface, then one kind: `decays.py` and `radial.py` (decays with the distance), `l1.py` (a
decay of the L1 distance, also directed), `table.py` (a learned table), `kerple.py` (two parameters a head). `widths.py`
holds learned widths within bounds. How a decay takes linear time on a grid is in `linear_time/`, which the other files
do not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from performer_string.bias.base import RelativeBias, Split
from performer_string.bias.decays import DistanceDecay, ExponentialDecay, GaussianDecay
from performer_string.bias.kerple import Kerple
from performer_string.bias.l1 import L1Decay
from performer_string.bias.radial import RadialDecay
from performer_string.bias.table import RelativeBiasTable
from performer_string.position.grid import check_grid
from performer_string.utils.registry import construct, lookup

LOCALITIES: dict[str, type[RelativeBias]] = {
    "gaussian": GaussianDecay,
    "exponential": ExponentialDecay,
    "radial": RadialDecay,
    "exponential-l1": L1Decay,
    "table": RelativeBiasTable,
    "kerple": Kerple,
}

__all__ = [
    "LOCALITIES",
    "DistanceDecay",
    "Kerple",
    "L1Decay",
    "RelativeBias",
    "RelativeBiasTable",
    "Split",
    "build_locality",
]


def build_locality(name: str, *, num_heads: int, grid: Sequence[int] | None = None, **options: Any) -> RelativeBias:
    """Build a relative bias by its name in `LOCALITIES`.

    In linear attention with more than 256 tokens `gaussian`, `exponential` and `radial` are approximate where they are
    wide, by some 3 % of the outputs, unless they are `normalised`; see `DistanceDecay`. All others are exact.

    Args:
        name: kind of bias: `gaussian`, `exponential`, `radial`, `exponential-l1`, `table` or `kerple`.
        num_heads: number H of heads.
        grid: training grid, which `table` needs. Decays with one width per axis take their number of axes from it.
        options: options of the class: `normalised` (whether the attention's denominator has the bias too), and those of
            `DistanceDecay` (decays.py), of `L1Decay` (l1.py) or of `Kerple` (kerple.py). `radial` also has
            `num_scales`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    if grid is not None:
        check_grid("grid", grid)
    kind = lookup("locality", name, LOCALITIES)
    return construct("locality", name, kind, options, {"grid": grid}, num_heads=num_heads)
