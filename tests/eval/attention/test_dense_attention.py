"""Attention by N x N weights: the limit of many random features, and the keys nearby."""

from __future__ import annotations

import pytest
import torch

from eval.attention import dense_attention
from eval.attention.dense_attention import ExpectedKernel, NearKeys
from performer_string import grid_positions
from performer_string.layers.backends import build_attention
from performer_string.ops.layout import TokenLayout
from performer_string.ops.rotary import rotate_pair
from tests.helpers.large_weights import MODELS, model

POSITIONS = grid_positions((3, 4))


@pytest.mark.parametrize("kind", ["arc-cosine", "favor+", "polynomial"])
def test_the_expected_kernel_is_the_limit_of_many_features(kind, monkeypatch):
    monkeypatch.setattr(dense_attention, "QUERIES_AT_A_TIME", 5)  # parts that do not divide the tokens
    options = {**MODELS[kind]["feature_options"], **({} if kind == "polynomial" else {"num_features": 2**15})}
    backend = build_attention("linear", head_dim=6, num_heads=2, feature_map=kind, seed=0, feature_options=options)
    q, k, v = torch.randn(3, 2, 2, 12, 6) * 0.5
    rotation = model().encoding.by_layer(POSITIONS)[0]
    rotation.head_dim, rotation.cos, rotation.sin = 6, rotation.cos[..., :3], rotation.sin[..., :3]
    mask = torch.rand(2, 12) < 0.7
    for key_mask in (None, mask):
        layout = TokenLayout(mask=key_mask)
        many = backend(q, k, v, rotation=rotation, layout=layout)
        exact = ExpectedKernel(backend.phi)(q, k, v, rotation=rotation, layout=layout)
        torch.testing.assert_close(exact, many, rtol=0, atol=0.03)
        assert (many - v.mean(-2, keepdim=True)).abs().max() > 0.1
    weights = ExpectedKernel(backend.phi).weights(*rotate_pair(q, k, rotation))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 12))


@torch.no_grad()
def test_masked_keys_are_not_near():
    backend = build_attention("softmax", head_dim=6, num_heads=2, feature_map="favor+", seed=0, feature_options={})
    near = NearKeys(backend, [9.0, 9.0])
    q, k, v = torch.randn(3, 2, 2, 12, 6)
    layout = TokenLayout(POSITIONS, mask=torch.arange(12) < torch.tensor([[5], [12]]))
    torch.testing.assert_close(near(q, k, v, layout=layout), backend(q, k, v, layout=layout))
