"""Sums over many tokens in 16 bits: 20,000 equal values, whose sum fp16 has no number for and bf16 stops counting."""

from __future__ import annotations

import pytest
import torch

from performer_string import (
    ViT,
    ViTConfig,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from performer_string.layers.pooling import build_pool, mean_pool
from performer_string.ops.polynomial import squares

TOKENS, VALUE = 20_000, 100.0
DTYPES = [torch.float16, torch.bfloat16]
ROOM = {torch.float16: 4e-3, torch.bfloat16: 1.2e-2}  # two roundings of bf16, since matrix units round within products
MAPS = [("favor+", {}), ("favor+hyperbolic", {}), ("arc-cosine", {"order": 4}), ("polynomial", {"lower": True})]


def test_a_running_sum_in_these_types_would_be_lost():
    """The control: the values are such that the tests below can fail."""
    for dtype in DTYPES:
        total = torch.zeros((), dtype=dtype)
        for _ in range(1000):
            total += VALUE
        assert not torch.isclose(total.double() / 1000, torch.tensor(VALUE).double(), rtol=0.3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pooling(dtype):
    x, mask = torch.full((1, TOKENS, 8), VALUE, dtype=dtype), torch.ones(1, TOKENS, dtype=torch.bool)
    mask[:, TOKENS // 2 :] = False
    for pool in (mean_pool, build_pool("attention", 8, 2, 16, 1e-6).to(dtype)):
        for taking_part in (None, mask):
            assert (pool(x, taking_part) == VALUE).all()
    layer = build_pool("map", 8, 2, 16, 1e-6)
    exact = layer(x.float())
    torch.testing.assert_close(layer.to(dtype)(x).float(), exact, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("form", ["tiles", "products"])
@pytest.mark.parametrize("autocast", [False, True], ids=["pure", "autocast"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_and_its_gradient(monkeypatch, dtype, autocast, form):
    """A mean of equal values is that value, and a value's gradient the number of queries over that of keys."""
    monkeypatch.setattr(squares, "is_linear_cheaper", lambda *_: form == "products")
    maps = MAPS[-1:] if form == "tiles" else MAPS
    key = torch.randn(1, 1, 1, 8)
    queries = (key + 0.3 * torch.randn(1, 1, 50, 8)).to(dtype)  # near the key: every query meets some feature of it
    keys = key.to(dtype).expand(1, 1, TOKENS, 8)
    for name, options in maps:
        random = {} if name == "polynomial" else {"num_features": 8}
        phi = build_feature_map(name, head_dim=8, num_heads=1, **random, **options)
        phi = phi if autocast else phi.to(dtype)
        v = torch.full((1, 1, TOKENS, 8), VALUE, dtype=torch.float32 if autocast else dtype, requires_grad=True)
        with torch.autocast("cpu", dtype, enabled=autocast):
            out = linear_attention(queries.to(v.dtype), keys.to(v.dtype), v, phi)
        torch.testing.assert_close(out.float(), torch.full_like(out, VALUE).float(), rtol=ROOM[dtype], atol=0)
        (gradient,) = torch.autograd.grad(out.float().sum(), v)
        torch.testing.assert_close(gradient.float(), torch.full_like(v, 50 / TOKENS).float(), rtol=0.02, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_and_localities(dtype):
    tokens = 900
    q = torch.randn(1, 1, 1, 8).to(dtype).expand(1, 1, tokens, 8)
    v = torch.full((1, 1, tokens, 8), 6e4, dtype=dtype)
    for bias in (None, torch.zeros(1, 1, tokens)):
        out = softmax_attention(q, q, v, key_bias=bias)
        torch.testing.assert_close(out, v, rtol=4e-3, atol=0)
    phi = build_feature_map("favor+", head_dim=8, num_heads=1, num_features=8)
    for name in ("gaussian", "radial", "exponential"):
        locality = build_locality(name, num_heads=1, sigma=60.0, normalised=True)
        out = linear_attention(q, q, v, phi, locality=locality, positions=grid_positions((30, 30)))
        torch.testing.assert_close(out, v, rtol=4e-3, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_whole_model(dtype, attention):
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 1, "width": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    config = ViTConfig(**sizes, in_channels=1, attention=attention, encoding="rope-mixed", pool="mean")
    model = ViT(config).eval()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(1, 1, 1, 1).expand(1, 1, 64, 64) + torch.randn(1, 1, 64, 64) * 0.1
    with torch.no_grad():
        exact = model(images)
        with torch.autocast("cpu", dtype):
            mixed = model(images)
        pure = model.to(dtype)(images.to(dtype))
    for out in (mixed, pure):
        torch.testing.assert_close(out.float(), exact, rtol=0, atol=0.05 * float(exact.abs().max()))
