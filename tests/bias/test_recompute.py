"""Features of a chunk of tokens at a time against the N x N definition, with every gradient."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from eval.speed.measure import peak_bytes
from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias.linear_time import recompute
from performer_string.feature_maps import FEATURE_MAPS, FeatureMap, RandomFeatures
from performer_string.ops import reference
from tests.helpers.cases import case
from tests.helpers.decays import assert_within_bounds, decay, definition, qkv, use_regime

MAPS = {
    "favor+": {"num_features": 8},
    "favor+hyperbolic": {"num_features": 8},
    "arc-cosine": {"num_features": 8, "order": 3},
    "polynomial": {"lower": True},
}
# For chunks of one row of tiles or one cell, which are slow, grids of just more than one of each.
GRIDS = {
    1: [(67,), (9, 9), (9, 3, 3)],
    400: [(97,), (13, 18), (1, 61), (5, 6, 7), (19, 3)],
    2000: [(97,), (13, 18), (1, 61), (5, 6, 7), (19, 3)],
}


def use_chunk(monkeypatch, size):
    monkeypatch.setattr(recompute, "CHUNK_FEATURES", {"cpu": size})


def dense(locality, phi, q, k, v, positions, num_prefix=0, mask=None):
    weights = reference.linear_weights(phi.queries(q), phi.keys(k), mask)
    return reference.attend(weights * definition(locality, positions, num_prefix), v)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", GRIDS)
@pytest.mark.parametrize("each_axis", [False, True], ids=["one sigma", "a sigma for each axis"])
@pytest.mark.parametrize(("name", "regime"), [("gaussian", "window"), ("gaussian", "grid"), ("radial", "both")])
@pytest.mark.usefixtures("over_grid")
def test_chunks_are_the_definition_with_every_gradient(name, regime, each_axis, chunk, monkeypatch):
    """In chunks of one row of tiles or one cell, of several, and of whole heads; with every map, prefix and mask."""
    use_regime(monkeypatch, regime)
    use_chunk(monkeypatch, chunk)
    for i, grid in enumerate(GRIDS[chunk]):
        kind, num_prefix = list(FEATURE_MAPS)[(i + chunk) % len(FEATURE_MAPS)], 2 * (i % 2 == 0)
        with case(grid, kind, num_prefix):
            sigma = 4.0 if regime == "window" else 0.5 * max(grid)
            each = [share * sigma for share in (1.0, 0.4, 0.7)][: len(grid)]
            locality = decay(name, each if each_axis else sigma, heads=3)
            positions = torch.cat([torch.zeros(num_prefix, len(grid)), 0.7 + grid_positions(grid)]).double()
            q, k, v = qkv(len(positions), heads=3)
            phi = build_feature_map(kind, head_dim=6, num_heads=3, **MAPS.get(kind, {})).double()
            mask = torch.rand(2, len(positions)) > 0.3 if num_prefix else None
            options = {"positions": positions, "num_prefix": num_prefix, "key_mask": mask}
            fast = linear_attention(q, k, v, phi, locality=locality, **options)
            slow = dense(locality, phi, q, k, v, positions, num_prefix, mask)
            assert_within_bounds(fast, slow, [q, k, v, *locality.parameters()], regime)


class OwnDraw(RandomFeatures):
    """A random map by `queries` alone, which docs/guides/own-feature-map.md says is enough."""

    def queries(self, q):
        return self.project(q).sigmoid()


class OwnWeights(FeatureMap):
    """A map that takes four axes only, and has other features of keys."""

    def __init__(self, head_dim, num_heads, num_features):
        super().__init__(head_dim, num_heads, num_features)
        self.weights = torch.nn.Parameter(torch.randn(num_heads, num_features, head_dim))

    def queries(self, q):
        return torch.einsum("bhnd,hmd->bhnm", q, self.weights).sigmoid()

    def keys(self, k):
        return self.queries(k) + 0.1


class OwnShape(FeatureMap):
    """A map without parameters."""

    def queries(self, q):
        return q.sigmoid()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OwnDraw, OwnWeights, OwnShape])
def test_map_by_its_definition_alone(kind, monkeypatch):
    """The larger chunk has three samples, as many as there are heads."""
    for regime in ("window", "grid"):
        use_regime(monkeypatch, regime)
        for chunk in (400, 18_000):
            use_chunk(monkeypatch, chunk)
            with case(regime, chunk):
                locality = decay("gaussian", 4.0 if regime == "window" else 9.0, heads=3)
                positions = grid_positions((9, 37), dtype=torch.float64)
                q, k, v = qkv(333, batch=4, heads=3)
                phi = kind(6, 3, 6).double()
                fast = linear_attention(q, k, v, phi, locality=locality, positions=positions)
                leaves = [q, k, v, *locality.parameters(), *phi.parameters()]
                assert_within_bounds(fast, dense(locality, phi, q, k, v, positions), leaves, regime)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "regime"), [(0.5, "window"), (32.0, "grid")])
def test_features_of_all_tokens_are_never_in_memory(sigma, regime, monkeypatch):
    """The peak is far below N x m in chunks, in the backward pass too, and above where all is one chunk."""
    use_regime(monkeypatch, regime)
    for backward in (False, True):
        locality, positions = build_locality("gaussian", num_heads=2, sigma=sigma), grid_positions((256, 16))
        phi = build_feature_map("favor+", head_dim=4, num_heads=2, num_features=256)
        q, k, v = (torch.randn(1, 2, 4096, 4, requires_grad=backward) for _ in range(3))

        def call(args=(q, k, v, phi), options={"locality": locality, "positions": positions}, backward=backward):  # noqa: B006
            out = linear_attention(*args, **options)
            if backward:
                out.sum().backward()

        peaks = []
        for chunk in (2**14, 2**30):
            use_chunk(monkeypatch, chunk)
            with torch.set_grad_enabled(backward):
                peaks.append(peak_bytes(call, torch.device("cpu")))
        features = 4 * 2 * 4096 * 256
        assert peaks[0] < features / 2 < features < peaks[1], backward


@pytest.mark.usefixtures("over_grid")
def test_learned_features_get_their_gradient(monkeypatch):
    """The gradient by chunks is that by features of all tokens."""
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8).double()
    phi.projection.requires_grad_()
    positions = grid_positions((9, 14), dtype=torch.float64)
    q, k, v = (torch.randn(1, 2, 126, 6, dtype=torch.float64) for _ in range(3))
    for sigma in (1.0, 10.0):
        locality, gradients = decay("gaussian", sigma), []
        for chunk in (1, 2**30):
            use_chunk(monkeypatch, chunk)
            out = linear_attention(q, k, v, phi, locality=locality, positions=positions)
            gradients.append(torch.autograd.grad((out * v).sum(), phi.projection)[0])
        torch.testing.assert_close(*gradients)


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["window", "grid"])
@pytest.mark.usefixtures("over_grid")
def test_backward_pass_has_the_weights_of_the_forward_pass(regime, monkeypatch):
    """Under `functional_call`, which restores a module's weights in between, and in replicas without parameters."""
    use_regime(monkeypatch, regime)
    use_chunk(monkeypatch, 100)
    for learned in (True, False):
        with case(learned):
            compare_replaced_weights(learned)


def compare_replaced_weights(learned):
    maps = [build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8, learned=learned) for _ in range(2)]
    locality, positions = build_locality("gaussian", num_heads=2, sigma=2.0), grid_positions((9, 13))
    q, k, v = torch.randn(3, 2, 2, 117, 6)
    weights = torch.randn(2, 8, 6)
    maps[0].projection.data.copy_(weights)
    replica = maps[1]._replicate_for_data_parallel()  # followed by what torch's `replicate` does
    replica.projection = weights.clone().requires_grad_(learned)
    if learned:
        replica._former_parameters = {"projection": replica.projection}

    def gradients(attention, projection):
        leaf = q.clone().requires_grad_()
        loss = (attention(leaf) * v).sum()
        return torch.autograd.grad(loss, [leaf, projection] if learned else [leaf])

    def attention(phi):
        return lambda q: linear_attention(q, k, v, phi, locality=locality, positions=positions)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = maps[1]

        def forward(self, q):
            return attention(self.phi)(q)

    replaced = weights.clone().requires_grad_(learned)
    expected = gradients(attention(maps[0]), maps[0].projection)
    for computed in (
        gradients(lambda q: functional_call(Layer(), {"phi.projection": replaced}, (q,)), replaced),
        gradients(attention(replica), replica.projection),
    ):
        for a, b in zip(computed, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("over_grid")
def test_low_precision_and_a_sample_without_keys(monkeypatch):
    use_chunk(monkeypatch, 100)
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


@pytest.mark.usefixtures("over_grid")
def test_all_slabs_share_the_largest_scale(monkeypatch):
    """Features overflow with another scale, where the logits of chunks differ much; masked keys do not count."""
    phi = build_feature_map("favor+", head_dim=6, num_heads=2, num_features=8)
    positions = grid_positions((9, 14))
    q, k, v = (torch.randn(1, 2, 126, 6) for _ in range(3))
    k[:, :, 60:] *= 100
    for sigma in (1.0, 10.0):
        locality, outs = build_locality("gaussian", num_heads=2, sigma=sigma), []
        for chunk in (100, 2**30):
            use_chunk(monkeypatch, chunk)
            with torch.no_grad():
                outs.append(linear_attention(q, k, v, phi, locality=locality, positions=positions))
        assert outs[1].abs().max() > 0
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16)
    k = torch.randn(2, 2, 9, 6)
    masked, large = (torch.arange(9) >= 5).expand(2, 9)[:, None, :, None], k.clone()
    large[:, :, 5:] = 1e4
    for chunk in (64, 2**30):
        use_chunk(monkeypatch, chunk)
        scales = recompute.largest_scale(phi, large, masked), recompute.largest_scale(phi, k[:, :, :5], None)
        assert torch.equal(*scales)
