"""Focused attention with the features of a slab of tokens at a time: the N x N definition, with every gradient."""

from __future__ import annotations

import pytest
import torch
from test_focusing import GRADIENT, GRID, WINDOW, compare, decay, definition, take

from performer_string import build_feature_map, grid_positions, linear_attention, naive, slabs
from performer_string.features import FEATURE_MAPS

MAPS = {"favor+": {"num_features": 8}, "favor+hyperbolic": {"num_features": 8}, "relu": {"num_features": 8, "order": 3}}
GRIDS = [(97,), (13, 18), (1, 61), (5, 6, 7), (19, 3)]


def dense(locality, phi, q, k, v, positions, num_prefix, mask):
    full = definition(locality, positions).clone()
    full[:, :num_prefix] = 1
    full[:, :, :num_prefix] = 1
    return naive.attend(naive.linear_weights(phi.queries(q), phi.keys(k), mask) * full, v)


@pytest.mark.parametrize("num_prefix", [0, 2])
@pytest.mark.parametrize("slab", [1, 400, 2000])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(("name", "regime"), [("gaussian", "window"), ("gaussian", "grid"), ("radial", "both")])
def test_slabs_are_the_definition_with_every_gradient(name, regime, grid, slab, num_prefix, monkeypatch):
    """In slabs of one tile or cell, of several, and of one or two whole heads, of every feature map in turn, with masks and heads of their own."""
    take(monkeypatch, regime)
    monkeypatch.setattr(slabs, "SLAB", {"cpu": slab})
    locality = decay(name, 4.0 if regime == "window" else 0.5 * max(grid), heads=3)
    positions = torch.cat([torch.zeros(num_prefix, len(grid)), 0.7 + grid_positions(grid)]).double()
    q, k, v = (torch.randn(2, 3, len(positions), 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    v = (v.detach() + 1).requires_grad_()
    kind = list(FEATURE_MAPS)[(len(grid) + slab + num_prefix) % len(FEATURE_MAPS)]
    phi = build_feature_map(kind, head_dim=6, num_heads=3, **MAPS.get(kind, {"lower": True})).double()
    mask = torch.rand(2, len(positions)) > 0.3 if num_prefix else None
    fast = linear_attention(q, k, v, phi, locality=locality, positions=positions, num_prefix=num_prefix, key_mask=mask)
    slow = dense(locality, phi, q, k, v, positions, num_prefix, mask)
    value, gradients = compare(fast, slow, [q, k, v, *locality.parameters()])
    assert value < (WINDOW if regime == "window" else GRID)
    assert max(gradients) < (10 * WINDOW if regime == "window" else GRADIENT)
