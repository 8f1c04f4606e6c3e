"""Every feature map, and linear attention with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string import FeatureMap, RandomFeatures, build_feature_map, derive_seed, linear_attention

from .encodings import build as build_rotations
from .encodings import case_id, places
from .numbers import draw, fill, gradients, projected

HEADS, WIDTH = 2, 12


class Shifted(FeatureMap):
    """A map of one's own, by its features alone: phi(x) = exp(x + c) with a learned shift of each head."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HEADS, WIDTH)
        self.shift = torch.nn.Parameter(torch.zeros(HEADS, WIDTH))

    def queries(self, q: Tensor) -> Tensor:
        return (q + self.shift[:, None]).exp()


class Powers(FeatureMap):
    """A map of one's own without tensors, whose keys are others than its queries."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HEADS, WIDTH)

    def queries(self, q: Tensor) -> Tensor:
        return q.square() + 1

    def keys(self, k: Tensor) -> Tensor:
        return k.relu() + 0.5


MAPS: list[tuple[str, dict[str, Any]]] = [
    *(("favor+", {"num_features": 16, **more}) for more in ({}, {"scale": 0.7}, {"learned": True})),
    *(("favor+hyperbolic", {"num_features": 16, **more}) for more in ({}, {"scale": 0.7}, {"learned": True})),
    *(("relu", {"num_features": 16, "order": order}) for order in (1, 2, 3, 4)),
    ("relu", {"num_features": 16, "order": 2, "learned": True}),
    ("relu", {"num_features": 16}),
    ("polynomial", {}),
    ("polynomial", {"lower": True}),
    ("polynomial", {"lower": True, "scale": 0.7}),
]


def build(name: str, options: dict[str, Any], width: int = WIDTH) -> FeatureMap:
    return fill(build_feature_map(name, head_dim=width, num_heads=HEADS, seed=derive_seed(5, "golden"), **options))


def mask() -> Tensor:
    """Return a key mask of two samples, [2, 12]: three keys and one take no part."""
    allowed = torch.ones(2, 12, dtype=torch.bool)
    allowed[0, [1, 5, 11]] = False
    allowed[1, 0] = False
    return allowed


def qkv(batch: int = 1, count: int = 12, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values with a gradient, [B, H, N, d]."""
    q, k, v = (1.7 * draw(batch, HEADS, count, width, key=key) for key in (1, 2, 3))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def feature_maps() -> dict[str, Tensor]:
    """Return the features of queries and keys, the kernel they stand for, and other draws."""
    out: dict[str, Tensor] = {}
    for name, options in MAPS:
        phi, (q, k, _), case = build(name, options), qkv(), case_id(name, options)
        with torch.no_grad():
            fq, fk = phi.pair(q, k)
            out |= {f"{case}/queries": projected(fq, 2), f"{case}/keys": projected(fk, 2)}
            out[f"{case}/features"] = fk[:, :, ::5].clone()
            out[f"{case}/plain"] = torch.stack([projected(phi.queries(q), 3), projected(phi.keys(k), 3)])
            both = phi.pair(*(x.expand(2, -1, -1, -1) for x in (q, k)), mask())
            out |= {f"{case}/masked": torch.stack([projected(x, 3) for x in both])}
            out[f"{case}/kernel"] = projected(phi.log_kernel(q, k), 3)
            facts = [phi.num_features, phi.degree or 0, phi.scale or 0.0, phi.homogeneous]
            out[f"{case}/facts"] = torch.tensor([float(x) for x in facts], dtype=torch.float64)
            if isinstance(phi, RandomFeatures) and not phi.learned:
                phi.redraw(7)
                out[f"{case}/redrawn"] = projected(phi.pair(q, k)[0], 2)
    return out


def linear() -> dict[str, Tensor]:
    """Return linear attention with every map: plain, under a rotation, masked, with a bias of each key, all at once."""
    out: dict[str, Tensor] = {}
    rotation = build_rotations("circulant-string", {}, 2)(places(2).detach())
    for name, options in MAPS:
        phi, case = build(name, options), case_id(name, options)
        q, k, v = qkv()
        result = linear_attention(q, k, v, phi)
        out[f"{case}/plain"] = result
        grads = gradients(result, q, k, v, module=phi)
        out |= {f"{case}/gradient{i}": projected(g, min(3, g.ndim)) for i, g in enumerate(grads)}
        q, k, v = qkv(2)
        bias = (2 * draw(2, HEADS, 12, key=4)).requires_grad_()
        result = linear_attention(q, k, v, phi, rotation=rotation)
        out[f"{case}/rotated"] = projected(result, 3)
        out[f"{case}/masked"] = projected(linear_attention(q, k, v, phi, key_mask=mask()), 3)
        out[f"{case}/bias"] = projected(linear_attention(q, k, v, phi, key_bias=bias), 3)
        result = linear_attention(q, k, v, phi, rotation=rotation, key_mask=mask(), key_bias=bias)
        out[f"{case}/all"] = projected(result, 3)
        grads = gradients(result, q, k, v, bias, module=phi)
        out |= {f"{case}/all gradient{i}": projected(g, min(2, g.ndim)) for i, g in enumerate(grads)}
        out[f"{case}/silent"] = projected(linear_attention(q, k, v, phi, key_mask=mask() & (mask() ^ mask())), 2)
    return {key: value.detach() for key, value in out.items()}


def own_maps() -> dict[str, Tensor]:
    """Return linear attention with maps of one's own, which say no more than their features."""
    out: dict[str, Tensor] = {}
    for name, phi in (("shifted", fill(Shifted())), ("powers", Powers())):
        q, k, v = qkv(2)
        bias = (2 * draw(2, HEADS, 12, key=4)).requires_grad_()
        result = linear_attention(q, k, v, phi, key_mask=mask(), key_bias=bias)
        out |= {f"{name}/pair{i}": projected(x, 2) for i, x in enumerate(phi.pair(q, k, mask()))}
        out[name] = projected(result, 3)
        grads = gradients(result, q, k, v, bias, module=phi)
        out |= {f"{name}/gradient{i}": projected(g, min(2, g.ndim)) for i, g in enumerate(grads)}
    return {key: value.detach() for key, value in out.items()}
