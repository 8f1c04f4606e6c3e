"""Every locality with linear and exact attention: N x N on few tokens, and the sums over a grid on many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string import OffsetKernel, build_locality, grid_positions, linear_attention, softmax_attention

from .encodings import build as build_rotations
from .encodings import case_id, places
from .features import HEADS, Powers, Shifted, mask, qkv
from .features import build as build_map
from .numbers import draw, fill, gradients, projected

CASES: list[tuple[str, dict[str, Any]]] = [
    ("gaussian", {}),
    ("gaussian", {"normalised": True}),
    ("gaussian", {"sigma_bounds": [0.5, 20.0], "max_amplitude": 3.0}),
    ("exponential", {}),
    ("exponential", {"normalised": True}),
    ("radial", {}),
    ("radial", {"normalised": True, "num_scales": 2}),
    ("table", {}),
    ("table", {"normalised": False}),
]
MAPS: list[tuple[str, dict[str, Any]]] = [
    ("favor+", {"num_features": 16}),
    ("relu", {"num_features": 16, "order": 2}),
    ("polynomial", {}),
]
# What decides between a window and the nodes: sigma, beside the numbers of tokens and features.
WALKS: list[tuple[str, dict[str, Any]]] = [
    *(("gaussian", {"sigma": sigma}) for sigma in (0.6, 2.0, 9.0)),
    ("gaussian", {"sigma": 1.0, "normalised": True}),
    *(("exponential", {"sigma": sigma}) for sigma in (0.5, 3.0, 12.0)),
    ("exponential", {"sigma": 0.4, "normalised": True}),
    *(("radial", {"sigma": sigma, "num_scales": 3}) for sigma in (1.0, 5.0, 14.0)),
    ("radial", {"sigma": 1.0, "normalised": True}),
    ("table", {}),
    ("table", {"normalised": False}),
]


class Cone(OffsetKernel):
    """A kernel of one's own, by its values alone: 1 - |r| / 3, or nothing."""

    def of_offsets(self, offsets: Tensor) -> Tensor:
        return (1 - offsets.square().sum(-1) / 9).clamp(min=0)[None]


def build(name: str, options: dict[str, Any], grid: tuple[int, ...] = (3, 4), filled: bool = True) -> OffsetKernel:
    locality = build_locality(name, num_heads=HEADS, grid=grid, **options).double().eval()
    return fill(locality) if filled else locality


def few_tokens() -> dict[str, Tensor]:
    """Return the kernels, and attention with them on 12 tokens: with prefix tokens, masks and biases too."""
    out: dict[str, Tensor] = {}
    positions = places(2)
    prefixed = torch.cat([torch.zeros(2, 2, dtype=torch.float64), positions[:10]])
    rotation = build_rotations("circulant-string", {}, 2)(positions)
    for name, options in CASES:
        locality, case = build(name, options), case_id(name, options)
        out[f"{case}/matrix"] = projected(locality.matrix(positions), 2)
        out[f"{case}/log matrix"] = projected(locality.log_matrix(prefixed, 2), 2)
        out |= {f"{case}/{key}": value for key, value in locality.learned().items()}
        started = build(name, options, filled=False)
        out[f"{case}/start"] = projected(started.matrix(positions), 2)
        for kind, more in (*MAPS, ("softmax", {})):
            key, phi = f"{case}/{kind}", None if kind == "softmax" else build_map(kind, more)

            def attend(*tensors: Tensor, phi: Any = phi, **given: Any) -> Tensor:
                return softmax_attention(*tensors, **given) if phi is None else linear_attention(*tensors, phi, **given)

            q, k, v = qkv()
            plain = attend(q, k, v, locality=locality, positions=positions)
            out[key] = plain if kind == "favor+" else projected(plain, 3)
            found = gradients(plain, q, k, v, module=locality)
            out |= {f"{key}/gradient{i}": projected(g, min(2, g.ndim)) for i, g in enumerate(found)}
            given: dict[str, Any] = {"locality": locality, "positions": prefixed, "num_prefix": 2}
            out[f"{key}/prefix"] = projected(attend(q, k, v, **given), 3)
            q, k, v = qkv(2)
            given |= {"key_mask": mask(), "key_bias": 2 * draw(2, HEADS, 12, key=4), "rotation": rotation}
            out[f"{key}/all"] = projected(attend(q, k, v, **given), 3)
    return {key: value.detach() for key, value in out.items()}


def rows_of(
    locality: OffsetKernel, phi: Any, positions: Tensor, num_prefix: int, masked: bool, grads: bool, width: int = 12
) -> dict[str, Tensor]:
    """Return a few rows of linear attention over all positions, and traces of all rows and of the gradients."""
    count = len(positions)
    q, k, v = qkv(1, count)
    allowed = draw(1, count, key=8) > -0.8 if masked else None
    given: dict[str, Any] = {"locality": locality, "positions": positions, "num_prefix": num_prefix}
    with torch.set_grad_enabled(grads):
        out = linear_attention(q, k, v[..., :width], phi, key_mask=allowed, **given)
    found = {"rows": out[:, :, [0, count // 2, count - 1]], "all": projected(out, 2)}
    if grads:
        results = gradients(out, q, k, v, module=locality)
        found |= {f"gradient{i}": projected(g, min(2, g.ndim)) for i, g in enumerate(results)}
    return {key: value.detach() for key, value in found.items()}


def many_tokens() -> dict[str, Tensor]:
    """Return sums over grids of more tokens than are summed N x N, of one to three axes."""
    out: dict[str, Tensor] = {}
    grid = grid_positions((18, 16), dtype=torch.float64)
    for name, options in WALKS:
        key = case_id(name, options)
        locality = build(name, options, (6, 8), filled=name == "table")
        phi = build_map("favor+", {"num_features": 8})
        found = rows_of(locality, phi, grid * 0.75 + 0.1, 0, False, True)
        prefixed = torch.cat([torch.zeros(2, 2, dtype=torch.float64), grid])
        found |= {f"prefix {k}": x for k, x in rows_of(locality, phi, prefixed, 2, True, False).items()}
        out |= {f"{key}/{k}": x for k, x in found.items()}
    axes = {"line": (300,), "flat": (1, 280), "cube": (7, 8, 6)}
    for axis, shape in axes.items():
        positions = grid_positions(shape, dtype=torch.float64)
        for name, options in (
            ("gaussian", {"sigma": 3.0}),
            ("radial", {"sigma": 6.0}),
            ("exponential", {"sigma": 2.0}),
        ):
            found = rows_of(build(name, options, filled=False), build_map("polynomial", {}), positions, 0, True, True)
            out |= {f"{axis}/{name}/{k}": x for k, x in found.items()}
    return out


def scans() -> dict[str, Tensor]:
    """Return sums whose features are made slab by slab, a table over many tokens, and positions that are no grid."""
    out: dict[str, Tensor] = {}
    small, large = (grid_positions(shape, dtype=torch.float64) for shape in ((40, 32), (64, 40)))
    plain = build_map("relu", {"num_features": 832, "order": 2})
    learned = build_map("favor+", {"num_features": 832, "learned": True})
    for name, options, grid, num_prefix, phi, grads in (
        ("gaussian", {"sigma": 0.5}, small, 0, plain, True),
        ("gaussian", {"sigma": 0.5}, small, 1, learned, True),
        ("gaussian", {"sigma": 0.4}, large, 0, plain, False),
        ("radial", {"sigma": 9.0}, small, 0, plain, False),
        ("radial", {"sigma": 9.0, "num_scales": 2}, small, 1, learned, True),
        ("table", {}, small, 0, plain, False),
    ):
        locality = build(name, options, (1, 1), filled=name == "table")
        positions = torch.cat([grid[:num_prefix], grid])
        found = rows_of(locality, phi, positions, num_prefix, True, grads)
        key = f"slabs/{name},{len(positions)},{'learned' if phi.learned else 'drawn'}"
        out |= {f"{key}/{k}": x for k, x in found.items()}
    table = build("table", {}, (3, 4))
    few = build_map("relu", {"num_features": 2})
    found = rows_of(table, few, grid_positions((72, 72), dtype=torch.float64) * 0.05, 0, False, True, width=1)
    out |= {f"transform/{key}": x for key, x in found.items()}
    scattered = draw(300, 2, key=6) * 5
    few = build_map("favor+", {"num_features": 8})
    for name in ("gaussian", "table"):
        found = rows_of(build(name, {}), few, scattered, 0, True, True)
        out |= {f"scattered/{name}/{key}": x for key, x in found.items()}
    return out


@torch.no_grad()
def own_parts() -> dict[str, Tensor]:
    """Return attention with a kernel and with feature maps of one's own, on few tokens and on a grid."""
    out: dict[str, Tensor] = {}
    grid = grid_positions((18, 16), dtype=torch.float64)
    for normalised in (True, False):
        cone, key = Cone(HEADS, normalised), f"cone,{normalised}"
        q, k, v = qkv()
        given: dict[str, Any] = {"locality": cone, "positions": places(2)}
        out[f"{key}/softmax"] = projected(softmax_attention(q, k, v, **given), 3)
        for name, phi in (("shifted", fill(Shifted())), ("powers", Powers())):
            out[f"{key}/{name}"] = projected(linear_attention(q, k, v, phi, **given), 3)
            found = rows_of(cone, phi, grid, 0, True, False)
            out |= {f"{key}/{name}/{k}": x for k, x in found.items()}
    gaussian, many = build("gaussian", {"sigma": 0.5}, filled=False), grid_positions((300, 300), dtype=torch.float64)
    for name, phi in (("shifted", fill(Shifted())), ("powers", Powers())):
        found = rows_of(gaussian, phi, many, 0, True, False)
        out |= {f"slabs/{name}/{key}": x for key, x in found.items()}
    return out
