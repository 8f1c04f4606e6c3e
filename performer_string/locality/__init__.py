"""Kernels of the offset between two tokens on attention: RiemannFormer's decays, and learned relative masks.

Both take linear time on a grid. A decay's is `focusing`, over windows (`window`) and coarse nodes (`grid`) of a
`lattice`; a mask's is an FFT.
"""

from __future__ import annotations

from typing import Any

from performer_string.choices import construct, lookup
from performer_string.locality.decay import ExponentialLocality, GaussianLocality, Locality, RadialLocality
from performer_string.locality.relative_mask import RelativeMask

LOCALITIES: dict[str, type[Locality]] = {
    "gaussian": GaussianLocality,
    "exponential": ExponentialLocality,
    "radial": RadialLocality,
}
RELATIVE_MASKS: dict[str, type[RelativeMask]] = {"table": RelativeMask}

__all__ = ["LOCALITIES", "RELATIVE_MASKS", "Locality", "RelativeMask", "build_locality", "build_relative_mask"]


def build_locality(name: str, *, num_heads: int, **options: Any) -> Locality:
    """A decay by its name in `LOCALITIES`; `options` are those of `Locality`, and `num_scales` for `radial`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    return construct("locality", name, lookup("locality", name, LOCALITIES), options, num_heads=num_heads)


def build_relative_mask(name: str, *, num_heads: int, **options: Any) -> RelativeMask:
    """A relative mask by its name in `RELATIVE_MASKS`; `options` are those of `RelativeMask`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    return construct("relative mask", name, lookup("relative mask", name, RELATIVE_MASKS), options, num_heads=num_heads)
