"""Every position encoding: the rotations and what is added to the tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string import ENCODINGS, Encoding, SeparableEncoding, build_encoding, grid_positions

from .numbers import draw, fill, gradients, projected, spread

HEADS, WIDTH, GRID = 2, 12, (4, 5, 3)
# Further options beside the defaults: the first part are those of tests/conftest.py, MORE_OPTIONS.
OPTIONS: dict[str, list[dict[str, Any]]] = {
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
MORE: dict[str, list[dict[str, Any]]] = {
    "cayley-string": [{"generator": "banded"}, {"generator": "top-k"}, {"generator": "random", "share_heads": True}],
    "pate-so2": [
        {"metric": True},
        {"layout": "axes", "metric": True, "share_heads": True},
        {"conformal_scaling": 0.5, "slow_down": 8.0},
        {"layout": "axes", "conformal_scaling": 0.5, "metric": True},
        {"layout": "axes", "learn_angles": False, "base": 30.0},
    ],
    "pate-so3": [{"conformal_scaling": 0.5}],
    "pate-so4": [{"conformal_scaling": 0.5, "share_heads": True}, {"learn_angles": False, "base": 20.0}],
    "rope": [{"base": 30.0}],
    "visionllama": [{"base": 500.0}],
    "sinusoidal": [{"base": 50.0}],
}
CASES = [(name, options) for name in ENCODINGS for options in ({}, *OPTIONS.get(name, []), *MORE.get(name, []))]
# Heads whose width is odd, or whose planes the axes cannot share out evenly.
WIDTHS: list[tuple[str, dict[str, Any], int]] = [
    *(
        (name, {}, 10)
        for name in ("rope", "visionllama", "rope-mixed", "cayley-string", "reflection-string", "sinusoidal")
    ),
    ("cayley-string", {"frequencies": "axial", "generator": "banded"}, 10),
    ("cayley-string", {"generator": "block-diagonal"}, 9),
    ("cayley-string", {"generator": "top-k"}, 4),
    ("circulant-string", {}, 9),
    ("circulant-string", {"block_size": 5}, 10),
    ("circulant-string", {"block_size": 6}, 6),
    ("pate-so2", {"layout": "axes", "learn_angles": False}, 10),
    ("pate-so3", {}, 9),
    ("pate-so4", {}, 8),
    ("liere", {}, 9),
    ("liere", {"block_size": 5}, 10),
]
FIXED = [  # no draw at the start
    ("pate-so2", {}),
    ("pate-so2", {"layout": "axes"}),
    ("pate-so2", {"layout": "axes", "metric": True, "conformal_scaling": 0.5}),
    ("cayley-string", {"generator": "banded", "frequencies": "axial", "init_std": 0.0}),
]


def case_id(name: str, options: dict[str, Any]) -> str:
    return ",".join([name, *(f"{key}={value}" for key, value in options.items())])


def build(
    name: str, options: dict[str, Any], coord_dim: int, layers: int = 1, filled: bool = True, width: int = WIDTH
) -> Encoding:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"head_dim": width, "num_heads": HEADS, "coord_dim": coord_dim, "grid": GRID[:coord_dim]}
    encoding = build_encoding(name, **sizes, layers=layers, **options).double().eval()
    if options.get("generator") == "random":
        spread(encoding, width)
    return fill(encoding) if filled else encoding


def places(coord_dim: int) -> Tensor:
    """Return 12 positions [12, C]: a grid of unequal spacing and an origin off the first cell."""
    grid = grid_positions(((12,), (3, 4), (2, 3, 2))[coord_dim - 1], dtype=torch.float64)
    steps = torch.tensor([0.7, 1.3, 1.1], dtype=torch.float64)[:coord_dim]
    return grid * steps + torch.tensor([0.2, -0.4, 0.3], dtype=torch.float64)[:coord_dim]


def one(encoding: Encoding, coord_dim: int) -> dict[str, Tensor]:
    """Return what an encoding gives at 12 positions; of other dimensions than two short traces of it."""
    positions, x = places(coord_dim).requires_grad_(), draw(1, HEADS, 12, WIDTH)
    rotation, added = encoding(positions), encoding.embedding(positions)
    rotated = rotation.rotate(x)
    out = {"rotate": rotated if coord_dim == 2 and not encoding.additive else projected(rotated, 3)}
    out["matrix"] = projected(rotation.matrix(), 2)
    out["inverse"] = projected(rotation.outer(rotation.unrotate(x)), 2)
    out["generators"] = projected(encoding.generators(), 2)
    basis, rest = rotation.factor()
    out["factor"] = projected(rest.rotate(x), 2)
    if basis is not None:
        out["basis"] = projected(basis, 1)
    if added is not None:
        out["embedding"] = added if coord_dim == 2 else projected(added, 1)
    result = rotated if added is None else added
    if result.requires_grad:
        grads = gradients(result, positions, module=encoding)
        out |= {f"gradient{i}": g for i, g in enumerate(grads)}
    return {key: value.detach() for key, value in out.items()}


def encodings(coord_dim: int) -> dict[str, Tensor]:
    """Return the outputs of every encoding that takes positions of this dimension."""
    out: dict[str, Tensor] = {}
    for name, options in CASES:
        if name != "pate-so4" or coord_dim < 3:
            found = one(build(name, options, coord_dim), coord_dim)
            out |= {f"{case_id(name, options)}/{key}": value for key, value in found.items()}
    return out


@torch.no_grad()
def layers_and_samples() -> dict[str, Tensor]:
    """Return the rotations of two layers that one encoding serves, and of samples with positions of their own."""
    out: dict[str, Tensor] = {}
    x, both = draw(2, HEADS, 12, WIDTH), torch.stack([places(2), places(2).flip(0) * 1.7])
    for name, options in CASES:
        encoding = build(name, options, 2, layers=2)
        for layer, rotation in enumerate(encoding.by_layer(places(2))):
            out[f"{case_id(name, options)}/layer {layer}"] = projected(rotation.rotate(x[:1]), 2)
        out[f"{case_id(name, options)}/samples"] = projected(build(name, options, 2)(both).rotate(x), 2)
    return out


@torch.no_grad()
def widths() -> dict[str, Tensor]:
    """Return traces of the rotations of heads of other widths."""
    out: dict[str, Tensor] = {}
    for name, options, width in WIDTHS:
        for coord_dim in (1, 2) if name == "pate-so4" or width < 6 else (1, 2, 3):
            encoding, key = build(name, options, coord_dim, width=width), f"{case_id(name, options)}/{width}"
            rotation, added = encoding(places(coord_dim)), encoding.embedding(places(coord_dim))
            out[f"{key}/{coord_dim}d"] = projected(rotation.rotate(draw(1, HEADS, 12, width)), 2)
            out[f"{key}/{coord_dim}d/matrix"] = projected(rotation.matrix(), 2)
            if added is not None:
                out[f"{key}/{coord_dim}d/embedding"] = projected(added, 1)
    return out


@torch.no_grad()
def untouched() -> dict[str, Tensor]:
    """Return the rotations at the start of those encodings that begin without a draw."""
    out: dict[str, Tensor] = {}
    for name, options in FIXED:
        encoding = build(name, options, 2, filled=False)
        assert isinstance(encoding, SeparableEncoding)
        out[case_id(name, options)] = projected(encoding(places(2)).rotate(draw(1, HEADS, 12, WIDTH)), 2)
    return out
