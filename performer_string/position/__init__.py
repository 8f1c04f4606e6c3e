"""Position encodings by name.

To add a family, write one file and add its line to `ENCODINGS`. The tests of the contract then run on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from performer_string.position.additive import Absolute, NoEncoding, Sinusoidal
from performer_string.position.base import Encoding, Sizes
from performer_string.position.cayley import CayleySTRING
from performer_string.position.circulant import CirculantSTRING
from performer_string.position.grid import check_grid, grid_positions, with_prefix
from performer_string.position.liere import LieRE
from performer_string.position.pate_so2 import PaTESO2
from performer_string.position.pate_so3 import PaTESO3
from performer_string.position.pate_so4 import PaTESO4
from performer_string.position.reflection import ReflectionSTRING
from performer_string.position.rope import RoPE, RoPEMixed, VisionLLaMA
from performer_string.position.rotation import Rotation
from performer_string.position.separable import SeparableEncoding
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

__all__ = [
    "ENCODINGS",
    "Encoding",
    "Rotation",
    "SeparableEncoding",
    "Sizes",
    "build_encoding",
    "check_effects",
    "grid_positions",
    "with_prefix",
]


def check_effects(name: str, options: Mapping[str, Any], coord_dim: int) -> None:
    """Raise a ValueError for an option of an encoding that has no effect together with the other options.

    Args:
        name: name of the encoding in `ENCODINGS`.
        options: options of the encoding, by name.
        coord_dim: dimension C of the positions.
    """
    family = lookup("encoding", name, ENCODINGS)
    if not (isinstance(family, type) and issubclass(family, Encoding)):
        raise TypeError(f"ENCODINGS[{name!r}] must be a subclass of Encoding, not {family!r}.")
    for option, reason in family.unused_options(options, coord_dim).items():
        raise ValueError(
            f"encoding {name!r}: {option}={options[option]!r} has no effect with {reason}. Leave it out, or change "
            f"{reason.partition('=')[0]}."
        )


def build_encoding(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    grid: Sequence[int] | None = None,
    layers: int = 1,
    qk_dim: int | None = None,
    **options: Any,
) -> Encoding:
    """Return a position encoding by its name in `ENCODINGS`.

    `encoding(positions)` is the rotation of queries and keys. `encoding.embedding(positions)` is the vectors that
    `absolute` and `sinusoidal` add to the tokens, and None for all others. `none` neither rotates nor adds.

    Args:
        name: name of the encoding in `ENCODINGS`.
        head_dim: width d of a head.
        num_heads: number H of heads, each with separate generators where they are learned.
        coord_dim: dimension C of the positions.
        grid: number of cells of the training grid along each axis. `absolute` needs it, and so does the raster index of
            `pate-so2` and of conformal scaling in two or more dimensions.
        layers: number of layers served, each with separate generators; `by_layer` returns their rotations.
        qk_dim: width of queries and keys, for encodings that are added to tokens of width H d; None for d.
        options: options of the class in `ENCODINGS`, as its docstring lists them: `RoPE` in `position/rope.py`, and so
            on.

    Returns:
        The encoding, a module.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; an option without an effect; or a value
            out of range.
    """
    family = lookup("encoding", name, ENCODINGS)
    if grid is not None:
        check_grid("grid", grid)
        grid = tuple(grid)
    sizes = Sizes(head_dim, num_heads, coord_dim, grid, layers, qk_dim)
    check_effects(name, options, coord_dim)
    if qk_dim not in (None, head_dim) and not family.additive:
        raise ValueError(
            f"qk_dim={qk_dim} has no effect on {name!r}, which rotates queries and keys of width {head_dim}: give "
            f"their width as head_dim."
        )
    return construct("encoding", name, family, options, sizes=sizes)
