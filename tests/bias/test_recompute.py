"""Focused attention with the features of a slab of tokens at a time: the N x N definition, with every gradient."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from eval.measure import peak_bytes
from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias.linear_time import recompute as slabs
from performer_string.feature_maps import FEATURE_MAPS, FeatureMap, RandomFeatures
from performer_string.ops import reference
from tests.helpers.decays import GRADIENT, GRID, WINDOW, compare, decay, definition, take

MAPS = {
    "favor+": {"num_features": 8},
    "favor+hyperbolic": {"num_features": 8},
    "arc-cosine": {"num_features": 8, "order": 3},
}
GRIDS = [(97,), (13, 18), (1, 61), (5, 6, 7), (19, 3)]


def dense(locality, phi, q, k, v, positions, num_prefix, mask):
    full = definition(locality, positions).clone()
    full[:, :num_prefix] = 1
    full[:, :, :num_prefix] = 1
    return reference.attend(reference.linear_weights(phi.queries(q), phi.keys(k), mask) * full, v)


@pytest.mark.parametrize("num_prefix", [0, 2])
@pytest.mark.parametrize("slab", [1, 400, 2000])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(("name", "regime"), [("gaussian", "window"), ("gaussian", "grid"), ("radial", "both")])
def test_slabs_are_the_definition_with_every_gradient(name, regime, grid, slab, num_prefix, monkeypatch):
    """In slabs of one tile or cell, of several, and of whole heads; of every map in turn, with masks."""
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


class OwnDraw(RandomFeatures):
    """By queries alone, which docs/extending.md says is enough."""

    def queries(self, q):
        return self.project(q).sigmoid()


class OwnWeights(FeatureMap):
    """One that takes four axes only, and has other features of keys."""

    def __init__(self, head_dim, num_heads, num_features):
        super().__init__(head_dim, num_heads, num_features)
        self.weights = torch.nn.Parameter(torch.randn(num_heads, num_features, head_dim))

    def queries(self, q):
        return torch.einsum("bhnd,hmd->bhnm", q, self.weights).sigmoid()

    def keys(self, k):
        return self.queries(k) + 0.1


class OwnShape(FeatureMap):
    def queries(self, q):
        return q.sigmoid()


@pytest.mark.parametrize("slab", [400, 18_000])  # the latter holds three samples, as many as there are heads
@pytest.mark.parametrize("kind", [OwnDraw, OwnWeights, OwnShape])
@pytest.mark.parametrize("regime", ["window", "grid"])
def test_a_map_by_its_definition_alone_is_that_of_each_head(regime, kind, slab, monkeypatch):
    take(monkeypatch, regime)
    monkeypatch.setattr(slabs, "SLAB", {"cpu": slab})
    locality, positions = decay("gaussian", 4.0 if regime == "window" else 9.0, heads=3), grid_positions((9, 37))
    q, k, v = (torch.randn(4, 3, 333, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    v = (v.detach() + 1).requires_grad_()
    phi = kind(6, 3, 6).double()
    fast = linear_attention(q, k, v, phi, locality=locality, positions=positions.double())
    slow = dense(locality, phi, q, k, v, positions.double(), 0, None)
    value, gradients = compare(fast, slow, [q, k, v, *locality.parameters(), *phi.parameters()])
    assert value < (WINDOW if regime == "window" else GRID)
    assert max(gradients) < (10 * WINDOW if regime == "window" else GRADIENT)


@pytest.mark.parametrize(("sigma", "regime"), [(0.5, "window"), (32.0, "grid")])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_features_of_all_tokens_are_never_held(sigma, regime, backward, monkeypatch):
    """The peak is far below N x m in slabs, in the backward pass too, and above where all is one slab."""
    take(monkeypatch, regime)
    locality, positions = build_locality("gaussian", num_heads=2, sigma=sigma), grid_positions((256, 16))
    phi = build_feature_map("favor+", head_dim=4, num_heads=2, num_features=256)
    q, k, v = (torch.randn(1, 2, 4096, 4, requires_grad=backward) for _ in range(3))
    peaks = []

    def call():
        out = linear_attention(q, k, v, phi, locality=locality, positions=positions)
        if backward:
            out.sum().backward()

    for slab in (2**14, 2**30):
        monkeypatch.setattr(slabs, "SLAB", {"cpu": slab})
        with torch.set_grad_enabled(backward):
            peaks.append(peak_bytes(call, torch.device("cpu")))
    features = 4 * 2 * 4096 * 256
    assert peaks[0] < features / 2 < features < peaks[1]


def test_learned_features_get_their_gradient(monkeypatch):
    """A map with weights of its own: the gradient by slabs is that by features held in full."""
    monkeypatch.setattr(slabs, "SLAB", {"cpu": 1})
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8).double()
    phi.projection.requires_grad_()
    positions = grid_positions((9, 14), dtype=torch.float64)
    q, k, v = (torch.randn(1, 2, 126, 6, dtype=torch.float64) for _ in range(3))
    for sigma in (1.0, 10.0):
        locality, found = decay("gaussian", sigma), []
        for slab in (1, 2**30):
            monkeypatch.setattr(slabs, "SLAB", {"cpu": slab})
            out = linear_attention(q, k, v, phi, locality=locality, positions=positions)
            found.append(torch.autograd.grad((out * v).sum(), phi.projection)[0])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("regime", ["window", "grid"])
@pytest.mark.parametrize("learned", [True, False])
def test_the_backward_pass_has_the_weights_of_the_forward_pass(learned, regime, monkeypatch):
    """As under `functional_call`, which gives a module its own back in between, and in replicas, which have none."""
    take(monkeypatch, regime)
    monkeypatch.setattr(slabs, "SLAB", {"cpu": 100})
    kinds = [
        build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8, learned=learned) for _ in range(2)
    ]
    locality, positions = build_locality("gaussian", num_heads=2, sigma=2.0), grid_positions((18, 19))
    q, k, v = torch.randn(3, 2, 2, 342, 6)
    lent = torch.randn(2, 8, 6)
    kinds[0].projection.data.copy_(lent)
    replica = kinds[1]._replicate_for_data_parallel()  # and what torch's `replicate` does then
    replica.projection = lent.clone().requires_grad_(learned)
    if learned:
        replica._former_parameters = {"projection": replica.projection}

    def gradients(attention, projection):
        own = q.clone().requires_grad_()
        loss = (attention(own) * v).sum()
        return torch.autograd.grad(loss, [own, projection] if learned else [own])

    def attention(phi):
        return lambda q: linear_attention(q, k, v, phi, locality=locality, positions=positions)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = kinds[1]

        def forward(self, q):
            return attention(self.phi)(q)

    other = lent.clone().requires_grad_(learned)
    expected = gradients(attention(kinds[0]), kinds[0].projection)
    for found in (
        gradients(lambda q: functional_call(Layer(), {"phi.projection": other}, (q,)), other),
        gradients(attention(replica), replica.projection),
    ):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_low_precision_and_a_query_that_no_key_answers_to(monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", {"cpu": 100})
    phi = build_feature_map("favor+", head_dim=6, num_heads=2, num_features=8)
    locality, positions = build_locality("gaussian", num_heads=2, sigma=2.0), grid_positions((9, 14))
    q, k, v = (torch.randn(2, 2, 126, 6) for _ in range(3))
    mask = torch.ones(2, 126, dtype=torch.bool)
    mask[1] = False
    with torch.no_grad():
        out = linear_attention(q, k, v, phi, locality=locality, positions=positions, key_mask=mask)
        low = linear_attention(*(x.bfloat16() for x in (q, k, v)), phi, locality=locality, positions=positions)
    assert (out[1] == 0).all()
    assert out[0].abs().max() > 0
    assert low.dtype == torch.bfloat16
    assert (low[0].float() - out[0]).abs().max() < 0.05


@pytest.mark.parametrize("sigma", [1.0, 10.0])
def test_the_features_of_every_slab_are_in_range(sigma, monkeypatch):
    """One scale for all keys, found over all slabs: another one overflows where their logits are far apart."""
    phi = build_feature_map("favor+", head_dim=6, num_heads=2, num_features=8)
    locality, positions = build_locality("gaussian", num_heads=2, sigma=sigma), grid_positions((9, 14))
    q, k, v = (torch.randn(1, 2, 126, 6) for _ in range(3))
    k[:, :, 60:] *= 100
    found = []
    for slab in (100, 2**30):
        monkeypatch.setattr(slabs, "SLAB", {"cpu": slab})
        with torch.no_grad():
            found.append(linear_attention(q, k, v, phi, locality=locality, positions=positions))
    assert found[1].abs().max() > 0
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slab", [64, 2**30])
def test_the_largest_scale_is_of_the_keys_that_take_part(slab, monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", {"cpu": slab})
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16)
    k = torch.randn(2, 2, 9, 6)
    hidden, wild = (torch.arange(9) >= 5).expand(2, 9)[:, None, :, None], k.clone()
    wild[:, :, 5:] = 1e4
    assert torch.equal(slabs.largest_scale(phi, wild, hidden), slabs.largest_scale(phi, k[:, :, :5], None))
