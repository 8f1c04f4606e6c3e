"""Every encoding with the options that it is tested with, and what its tests share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from performer_string.position import ENCODINGS, Encoding, SeparableEncoding, build_encoding

# A family is tested with its defaults by being listed in ENCODINGS; here are further options worth every test.
MORE_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cayley-string": [
        {"frequencies": "axial", "learn_frequencies": False},
        {"init_std": 1.0},
        {"share_heads": True},
        {"generator": "block-diagonal", "init_std": 1.0},
        {"generator": "banded", "bandwidth": 1, "init_std": 1.0},
        {"generator": "top-k", "k": 9, "init_std": 1.0},
        {"generator": "random", "fraction": 0.3, "init_std": 1.0},
    ],
    "circulant-string": [{"block_size": 4}, {"block_size": 3}, {"share_heads": True}],
    "reflection-string": [{"cayley": True}, {"share_heads": True}],
    "pate-so2": [{"layout": "axes"}, {"learn_angles": False}, {"share_heads": True}],
    "pate-so3": [{"share_heads": True}],
    "pate-so4": [{"share_heads": True}],
    "liere": [{"block_size": 2}, {"block_size": 4}, {"share_heads": True}],
    "rope-mixed": [{"share_heads": True}],
}
CASES = [(name, options) for name in ENCODINGS for options in ({}, *MORE_OPTIONS.get(name, []))]
SEPARABLE = [case for case in CASES if issubclass(ENCODINGS[case[0]], SeparableEncoding)]
FIXED = [("rope", {}), ("visionllama", {}), ("pate-so2", {"learn_angles": False})]  # nothing is learned


def with_dimensions(cases: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Each case in one, two and three dimensions, where it admits them."""
    most = {"pate-so4": 2}
    return [
        pytest.param(case, coord_dim, id=f"{case_id(case)}-{coord_dim}d")
        for case in cases
        for coord_dim in range(1, most.get(case[0], 3) + 1)
    ]


def case_id(case: tuple[str, dict[str, Any]]) -> str:
    return case[0] + "".join(f",{k}={v}" for k, v in case[1].items())


def make(case: tuple[str, dict[str, Any]], head_dim: int = 12, num_heads: int = 2, coord_dim: int = 2) -> Encoding:
    """The encoding of a case, in float64."""
    name, options = case
    grid = (4, 5, 3)[:coord_dim]
    encoding = build_encoding(name, head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim, grid=grid, **options)
    return encoding.double()


def random_positions(count: int, coord_dim: int) -> Tensor:
    return torch.randn(count, coord_dim, dtype=torch.float64) * 10


def scores(encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    rotation = encoding(positions)
    return rotation.rotate(q) @ rotation.rotate(k).mT
