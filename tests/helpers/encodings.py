"""Every encoding with the options that it is tested with, and what its tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from performer_string.position import ENCODINGS, Encoding, SeparableEncoding, build_encoding

# A family is tested with its defaults by being listed in ENCODINGS. These are further options worth every test.
MORE_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "absolute": [{"interpolation": "bicubic"}],
    "cayley-string": [
        {"frequencies": "axial", "learn_frequencies": False},
        {"init_std": 1.0},
        {"share_heads": True},
        {"generator": "block-diagonal", "init_std": 1.0},
        {"generator": "banded", "bandwidth": 1, "init_std": 1.0},
        {"generator": "top-k", "k": 9, "init_std": 1.0},
        {"generator": "top-k-of-matrix", "k": 24, "init_std": 1.0},
        {"generator": "random", "fraction": 0.3, "init_std": 1.0},
        {"both_triangles": True, "init_std": 1.0},
        {"generator": "banded", "both_triangles": True, "init_std": 1.0},
    ],
    "circulant-string": [{"block_size": 4}, {"block_size": 3}, {"share_heads": True}],
    "reflection-string": [{"cayley": True}, {"cayley": "banded", "bandwidth": 1}, {"share_heads": True}],
    "pate-so2": [{"layout": "axes"}, {"learn_angles": False}, {"share_heads": True}],
    "pate-so3": [{"share_heads": True}, {"layout": "raster"}],
    "pate-so4": [{"share_heads": True}, {"layout": "raster"}, {"layout": "raster", "factors": "both"}],
    "liere": [{"block_size": 2}, {"block_size": 4}, {"share_heads": True}],
    "rope-mixed": [{"share_heads": True}],
}
MOST_DIMENSIONS = {"pate-so4": 2}
SEPARABLE = [name for name, family in ENCODINGS.items() if issubclass(family, SeparableEncoding)]
ROTATING = [name for name, family in ENCODINGS.items() if not family.additive]


def make_encoding(name: str, head_dim: int = 12, num_heads: int = 2, coord_dim: int = 2, **options: Any) -> Encoding:
    """Return an encoding in float64, for a training grid of 4 x 5 x 3 cells or as many axes as it has."""
    sizes = {"head_dim": head_dim, "num_heads": num_heads, "coord_dim": coord_dim, "grid": (4, 5, 3)[:coord_dim]}
    return build_encoding(name, **sizes, **options).double()


@dataclass(frozen=True)
class Variant:
    """A family with options, for positions of one dimension C."""

    name: str
    coord_dim: int = 2
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Encoding:
        """Return the encoding in float64, of two heads of width 12."""
        return make_encoding(self.name, coord_dim=self.coord_dim, **self.options)

    def positions(self, count: int = 7) -> Tensor:
        """Return random positions [count, C]."""
        return random_positions(count, self.coord_dim)


def variants(name: str, all_dimensions: bool = True) -> Iterator[Variant]:
    """Yield a family with each set of options in two dimensions, and with its defaults in one and three."""
    for options in ({}, *MORE_OPTIONS.get(name, [])):
        yield Variant(name, 2, options)
    for coord_dim in (1, 3) if all_dimensions else ():
        if coord_dim <= MOST_DIMENSIONS.get(name, 3):
            yield Variant(name, coord_dim)


@contextmanager
def naming(case: object) -> Iterator[None]:
    """Say in a failure which case of a loop failed."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error


def random_positions(count: int, coord_dim: int) -> Tensor:
    """Return random positions [count, C] in float64, some tens of patches apart."""
    return torch.randn(count, coord_dim, dtype=torch.float64) * 10


def scores(encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    """Return the inner products of rotated queries and keys, [B, H, N, N]."""
    rotation = encoding(positions)
    return rotation.rotate(q) @ rotation.rotate(k).mT


def exponentials(encoding: Encoding, positions: Tensor) -> Tensor:
    """Return exp(sum_k r_k L_k) from the generators, [H, N, d, d]."""
    exponents = torch.einsum("nc,hcij->hnij", positions, encoding.generators().double())
    return torch.linalg.matrix_exp(exponents.contiguous())
