"""Kernels of the offset between two tokens on attention: decays with the distance, RiemannFormer's, and learned tables.

The attention's denominator does not see them, or does (`normalised`), which makes them a relative position bias on the
logits. On a grid decays take linear time (`focusing`), over windows (`window`) and coarse nodes (`grid`) of a
`grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from performer_string.bias.base import RelativeBias
from performer_string.bias.decays import DistanceDecay, ExponentialDecay, GaussianDecay, RadialDecay
from performer_string.bias.table import RelativeBiasTable
from performer_string.utils.registry import construct, lookup

LOCALITIES: dict[str, type[RelativeBias]] = {
    "gaussian": GaussianDecay,
    "exponential": ExponentialDecay,
    "radial": RadialDecay,
    "table": RelativeBiasTable,
}

__all__ = ["LOCALITIES", "DistanceDecay", "RelativeBias", "RelativeBiasTable", "build_locality"]


def build_locality(name: str, *, num_heads: int, grid: Sequence[int] | None = None, **options: Any) -> RelativeBias:
    """A kernel of the offset by its name in `LOCALITIES`.

    Args:
        num_heads: H.
        grid: the training grid, which `table` needs.
        options: `normalised`, whether the attention's denominator sees it too; those of `DistanceDecay` for a
            decay, and `num_scales` for `radial`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    kind = lookup("locality", name, LOCALITIES)
    return construct("locality", name, kind, options, {"grid": grid}, num_heads=num_heads)
