"""Softmax, linear attention and that of performer-pytorch, under rotations of every form, and many tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string import build_attention, linear_attention, softmax_attention

from .encodings import build as build_rotations
from .encodings import case_id, places
from .features import HEADS, WIDTH, mask, qkv
from .features import build as build_map
from .numbers import draw, gradients, projected

ROTATIONS: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("rope", {}),
    ("rope-mixed", {}),
    ("rope-mixed", {"share_heads": True}),
    ("circulant-string", {"block_size": 3}),
    ("cayley-string", {}),
    ("reflection-string", {"cayley": True}),
    ("pate-so2", {"layout": "axes", "metric": True}),
    ("pate-so2", {"conformal_scaling": 0.5, "slow_down": 8.0}),
    ("pate-so3", {}),
    ("pate-so4", {}),
    ("liere", {"block_size": 4}),
]
MAPS: list[tuple[str, dict[str, Any]]] = [
    ("favor+", {"num_features": 16}),
    ("relu", {"num_features": 16, "order": 2}),
    ("polynomial", {}),
]


def traces(name: str, results: tuple[Tensor, ...] | list[Tensor], keep: int) -> dict[str, Tensor]:
    return {f"{name}/gradient{i}": projected(x, min(keep, x.ndim)) for i, x in enumerate(results)}


def softmax() -> dict[str, Tensor]:
    """Return exact attention: plain, under rotations, masked, with a bias, with fewer queries than keys."""
    out: dict[str, Tensor] = {}
    q, k, v = qkv()
    out["plain"] = softmax_attention(q, k, v)
    out |= traces("plain", gradients(out["plain"], q, k, v), 3)
    out["scale"] = softmax_attention(q, k, v, scale=1.3)
    for name, options in ROTATIONS:
        encoding = build_rotations(name, options, 2)
        result = softmax_attention(q, k, v, rotation=encoding(places(2)))
        out[case_id(name, options)] = projected(result, 3)
        out |= traces(case_id(name, options), gradients(result, q, k, v, module=encoding), 2)
    q, k, v = qkv(2)
    bias = (2 * draw(2, HEADS, 12, key=4)).requires_grad_()
    rotation = build_rotations("circulant-string", {}, 2)(places(2).detach())
    out["masked"] = projected(softmax_attention(q, k, v, key_mask=mask()), 3)
    out["bias"] = projected(softmax_attention(q, k, v, key_bias=bias), 3)
    out["all"] = softmax_attention(q, k, v, rotation=rotation, key_mask=mask(), key_bias=bias)
    out |= traces("all", gradients(out["all"], q, k, v, bias), 2)
    out["mixed types"] = softmax_attention(q.float(), k, v.float())
    out["crossing"] = softmax_attention(q[:, :, :5], k, v[..., :7])
    return {key: value.detach() for key, value in out.items()}


def linear_rotations() -> dict[str, Tensor]:
    """Return linear attention under rotations of every form, those of samples with positions of their own as well."""
    out: dict[str, Tensor] = {}
    both = torch.stack([places(2), places(2).flip(0) * 1.7])
    for name, options in ROTATIONS:
        for kind, more in MAPS:
            case = f"{kind}/{case_id(name, options)}"
            encoding, phi, (q, k, v) = build_rotations(name, options, 2), build_map(kind, more), qkv()
            result = linear_attention(q, k, v, phi, rotation=encoding(places(2)))
            out[case] = projected(result, 3)
            out |= traces(case, gradients(result, q, k, v, module=encoding), 2)
            q, k, v = qkv(2)
            out[f"{case}/samples"] = projected(linear_attention(q, k, v, phi, rotation=encoding(both)), 2)
    for kind, more in MAPS:
        q, k, v = qkv(2)
        out[f"{kind}/crossing"] = projected(linear_attention(q[:, :, :5], k, v[..., :7], build_map(kind, more)), 3)
    return {key: value.detach() for key, value in out.items()}


def many_tokens() -> dict[str, Tensor]:
    """Return rows of attention over more tokens than one chunk of features holds.

    Values of the width of the queries go another way than others do.
    """
    out: dict[str, Tensor] = {}
    for name, options, count, width in (
        ("favor+", {"num_features": 512}, 2300, WIDTH),
        ("favor+", {"num_features": 512}, 700, 7),
        ("favor+hyperbolic", {"num_features": 512}, 700, 7),
        ("relu", {"num_features": 512, "order": 3}, 700, WIDTH),
    ):
        key, rows = f"{name},{count},{width}", [0, 63, 64, 511, 512, count - 1]
        allowed, positions = draw(1, count, key=8) > -0.8, draw(count, 2, key=6) * 9
        phi, (q, k, v) = build_map(name, options), qkv(1, count)
        bias = draw(1, HEADS, count, key=4).requires_grad_()
        encoding = build_rotations("rope-mixed", {}, 2)
        given = {"rotation": encoding(positions), "key_mask": allowed, "key_bias": bias}
        result = linear_attention(q, k, v[..., :width], phi, **given)
        out[key] = result[:, :, rows]
        found = gradients(result, q, k, v, bias, module=encoding)
        out |= {f"{key}/gradient{i}": projected(g, min(2, g.ndim)) for i, g in enumerate(found)}
        with torch.no_grad():
            out[f"{key}/no gradient"] = linear_attention(q, k, v[..., :width], phi, **given)[:, :, rows]
    return {key: value.detach() for key, value in out.items()}


@torch.no_grad()
def bf16() -> dict[str, Tensor]:
    """Return attention of bf16 tensors: with biases that bf16 does not resolve, which the first coordinate makes up."""
    out: dict[str, Tensor] = {}
    q, k, v = (x.detach().bfloat16() for x in qkv(2))
    bias, rotation = 60 * draw(2, HEADS, 12, key=4).float(), build_rotations("cayley-string", {}, 2)(places(2))
    q[..., 0], k[..., 0] = 1, -bias * WIDTH**0.5
    out["softmax"] = softmax_attention(q, k, v, key_bias=bias, key_mask=mask()).float()
    q, k, v = (x.detach().bfloat16() for x in qkv(2))
    for kind, more in MAPS:
        given: dict[str, Any] = {"key_bias": bias / 30, "key_mask": mask(), "rotation": rotation}
        out[kind] = linear_attention(q, k, v, build_map(kind, more).float(), **given).float()
    return out


@torch.no_grad()
def modules() -> dict[str, Tensor]:
    """Return the three ways to attend as modules, and performer-pytorch after another draw."""
    out: dict[str, Tensor] = {}
    rotation = build_rotations("circulant-string", {}, 2)(places(2))
    for name, kind, options in (
        ("softmax", "favor+", {}),
        ("linear", "favor+", {"num_features": 16}),
        ("linear", "relu", {"num_features": 16, "order": 2}),
        ("performer-pytorch", "favor+", {"num_features": 16}),
        ("performer-pytorch", "relu", {"num_features": 16, "order": 2}),
    ):
        sizes: dict[str, Any] = {"head_dim": WIDTH, "num_heads": HEADS, "feature_map": kind, "seed": 3}
        attention = build_attention(name, **sizes, feature_options=options).double()
        q, k, v = qkv()
        out[f"{name}/{kind}"] = attention(q, k, v, rotation=rotation)
        out[f"{name}/{kind}/weights"] = projected(attention.weights(q, k, rotation), 3)
        attention.redraw(4)
        out[f"{name}/{kind}/redrawn"] = projected(attention(q, k, v, rotation=rotation), 3)
    return out
