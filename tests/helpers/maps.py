"""Feature maps with their definitions, and comparison of fast forms with definitions, for the tests of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string import FeatureMap, build_feature_map
from performer_string.ops import reference

Case = tuple[str, dict[str, Any]]

MAPS: dict[str, Case] = {
    "favor+": ("favor+", {}),
    "favor+hyperbolic": ("favor+hyperbolic", {}),
    "arc-cosine-1": ("arc-cosine", {"order": 1}),
    "arc-cosine-3": ("arc-cosine", {"order": 3}),
    "arc-cosine-8": ("arc-cosine", {"order": 8}),
    "arc-cosine-16": ("arc-cosine", {"order": 16}),
    "polynomial": ("polynomial", {}),
    "polynomial-lower": ("polynomial", {"lower": True}),
    "elu": ("elu", {}),
}
KINDS = ["favor+", "arc-cosine-3", "polynomial"]  # an exponential, a power, and an exact polynomial


def make_map(name: str, heads: int, dim: int, features: int = 14) -> FeatureMap:
    """Return the map of a name in `MAPS`, with seeded features."""
    kind, options = MAPS[name]
    options = options if kind in ("polynomial", "elu") else {"num_features": features, **options}
    return build_feature_map(kind, head_dim=dim, num_heads=heads, seed=3, **options)


def reference_features(name: str, phi: FeatureMap, x: Tensor) -> Tensor:
    """Return the features of queries or keys by `reference`: [B, H, N, d] -> [B, H, N, m]."""
    kind, options = MAPS[name]
    if kind == "polynomial":
        return reference.polynomial_features(x, x.shape[-1] ** -0.5, options.get("lower", False))
    if kind == "elu":
        return reference.elu_features(x)
    if kind == "arc-cosine":
        return reference.arc_cosine_features(x, phi.projection, options["order"])
    features = reference.positive_features if kind == "favor+" else reference.hyperbolic_features
    return features(x, phi.projection, x.shape[-1] ** -0.5)


def draw(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return queries, keys and values with gradients."""
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


def draw_mask(batch: int, tokens: int) -> Tensor:
    """Return a mask [B, N] of about six keys in ten, the first among them."""
    mask = torch.rand(batch, tokens) < 0.6
    mask[:, 0] = True
    return mask


def draw_bias(*shape: int) -> Tensor:
    """Return a bias of keys with a gradient, some of it large."""
    return (3 * torch.randn(shape, dtype=torch.float64)).requires_grad_()


def assert_batched_gradients(out: Tensor, leaves: list[Tensor]) -> None:
    """Check that gradients of several upstream ones at once are those of one after the other."""
    upstream = torch.randn(4, *out.shape, dtype=out.dtype)
    batched = torch.autograd.grad(out, leaves, upstream, is_grads_batched=True, retain_graph=True)
    for i, one in enumerate(upstream):
        for stacked, alone in zip(batched, torch.autograd.grad(out, leaves, one, retain_graph=True), strict=True):
            torch.testing.assert_close(stacked[i], alone)


def compare(fast: Tensor, slow: Tensor, leaves: list[Tensor], rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """Compare values and every gradient."""
    torch.testing.assert_close(fast, slow, rtol=rtol, atol=atol)
    upstream = torch.randn_like(slow)
    gradients = (torch.autograd.grad(x, leaves, upstream, retain_graph=True) for x in (fast, slow))
    for number, (a, b) in enumerate(zip(*gradients, strict=True)):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=lambda text, n=number: f"gradient {n}: {text}")
