"""Feature maps and their definitions, shared by the tests of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string import build_feature_map
from performer_string.ops import reference

MAPS = [
    ("favor+", {}),
    ("favor+hyperbolic", {}),
    ("arc-cosine", {"order": 1}),
    ("arc-cosine", {"order": 3}),
    ("arc-cosine", {"order": 8}),
    ("arc-cosine", {"order": 16}),
    ("polynomial", {}),
    ("polynomial", {"lower": True}),
]


def make_map(case, heads: int, dim: int, features: int = 14):
    name, options = case
    options = options if name == "polynomial" else {"num_features": features, **options}
    return build_feature_map(name, head_dim=dim, num_heads=heads, seed=3, **options)


def naive_features(case, phi, x: Tensor) -> Tensor:
    name, options = case
    if name == "polynomial":
        return reference.polynomial_features(x, x.shape[-1] ** -0.5, options.get("lower", False))
    if name == "arc-cosine":
        return reference.arc_cosine_features(x, phi.projection, options["order"])
    form = reference.positive_features if name == "favor+" else reference.hyperbolic_features
    return form(x, phi.projection, x.shape[-1] ** -0.5)


def inputs(shape, dtype=torch.float64) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


def masks(shape) -> list[Tensor | None]:
    mask = torch.rand(shape[0], shape[2]) < 0.6
    mask[:, 0] = True
    return [None, mask]


def compare(fast: Tensor, slow: Tensor, leaves: list[Tensor], rtol=1e-7, atol=1e-9) -> None:
    torch.testing.assert_close(fast, slow, rtol=rtol, atol=atol)
    weight = torch.randn_like(slow)
    for a, b in zip(
        torch.autograd.grad((fast * weight).sum(), leaves),
        torch.autograd.grad((slow * weight).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
