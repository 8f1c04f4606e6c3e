"""Kernels of the offset between two tokens on attention: decays with the distance, RiemannFormer's, and learned tables.

The attention's denominator does not see them, or does (`normalised`), which makes them a relative position bias on the
logits. On a grid decays take linear time (`focusing`), over windows (`window`) and coarse nodes (`grid`) of a
`lattice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from performer_string.choices import construct, lookup
from performer_string.locality.decay import ExponentialLocality, GaussianLocality, Locality, RadialLocality
from performer_string.locality.offsets import OffsetKernel
from performer_string.locality.table import OffsetTable

LOCALITIES: dict[str, type[OffsetKernel]] = {
    "gaussian": GaussianLocality,
    "exponential": ExponentialLocality,
    "radial": RadialLocality,
    "table": OffsetTable,
}

__all__ = ["LOCALITIES", "Locality", "OffsetKernel", "OffsetTable", "build_locality"]


def build_locality(name: str, *, num_heads: int, grid: Sequence[int] | None = None, **options: Any) -> OffsetKernel:
    """A kernel of the offset by its name in `LOCALITIES`.

    Args:
        num_heads: H.
        grid: the training grid, which `table` needs.
        options: `normalised`, whether the attention's denominator sees it too; those of `Locality` for a decay, and
            `num_scales` for `radial`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    kind = lookup("locality", name, LOCALITIES)
    return construct("locality", name, kind, options, {"grid": grid}, num_heads=num_heads)
