"""Position encodings by name. To add a family, write one file and add its line here: every test then runs on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from performer_string.position.additive import Absolute, NoEncoding, Sinusoidal
from performer_string.position.base import Encoding, SeparableEncoding, Sizes
from performer_string.position.cayley import CayleySTRING
from performer_string.position.circulant import CirculantSTRING
from performer_string.position.liere import LieRE
from performer_string.position.pate import PaTESO2, PaTESO3
from performer_string.position.pate_so4 import PaTESO4
from performer_string.position.reflection import ReflectionSTRING
from performer_string.position.rope import RoPE, RoPEMixed, VisionLLaMA
from performer_string.utils.registry import construct, lookup

ENCODINGS: dict[str, type[Encoding]] = {
    "none": NoEncoding,
    "absolute": Absolute,
    "sinusoidal": Sinusoidal,
    "rope": RoPE,
    "rope-mixed": RoPEMixed,
    "visionllama": VisionLLaMA,
    "cayley-string": CayleySTRING,
    "circulant-string": CirculantSTRING,
    "reflection-string": ReflectionSTRING,
    "pate-so2": PaTESO2,
    "pate-so3": PaTESO3,
    "pate-so4": PaTESO4,
    "liere": LieRE,
}

__all__ = ["ENCODINGS", "Encoding", "SeparableEncoding", "Sizes", "build_encoding"]


def build_encoding(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    grid: Sequence[int] | None = None,
    layers: int = 1,
    **options: Any,
) -> Encoding:
    """A position encoding by its name in `ENCODINGS`.

    `encoding(positions)` is the rotation of queries and keys. `absolute`, `sinusoidal` and `none` (`additive`) do not
    rotate. `encoding.embedding(positions)` is what the first two add to the tokens, and None for all others.

    Args:
        head_dim, num_heads: the attention it serves; learned generators are for each head.
        coord_dim: dimension of the positions.
        grid: the training grid, which `absolute` needs.
        layers: how many layers it serves, each with generators of its own; `by_layer` gives their rotations.
        options: the family's own, as its docstring lists them.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    family = lookup("encoding", name, ENCODINGS)
    if isinstance(grid, int):
        raise ValueError(f"grid has to hold one size for each axis, like (14, 14), not {grid}.")
    sizes = Sizes(head_dim, num_heads, coord_dim, None if grid is None else tuple(grid), layers)
    return construct("encoding", name, family, options, sizes=sizes)
