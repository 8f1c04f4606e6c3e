"""The laws of every feature map, and controls that must break them."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from performer_string import FEATURE_MAPS, linear_attention
from performer_string.feature_maps import FeatureMap, RandomFeatures
from performer_string.ops import reference
from tests.helpers.encodings import naming
from tests.helpers.feature_maps import CASES, EXACT, OWN, RANDOM


def test_every_feature_map_is_tested():
    assert {case.name for case in CASES} == set(FEATURE_MAPS)
    random = {name for name, family in FEATURE_MAPS.items() if issubclass(family, RandomFeatures)}
    assert {case.name for case in RANDOM} == random - {case.name for case in OWN}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
class TestEvery:
    def test_features_are_their_definition(self, case):
        phi, x = case.make(), torch.randn(3, 2, 5, 6, dtype=torch.float64)
        for features in (phi.queries(x), phi.keys(x)):
            assert features.shape == (3, 2, 5, phi.num_features), "features are [B, H, N, num_features]"
        assert torch.equal(phi(x), phi.queries(x))
        expected = None if case.is_own else case.features(phi, x)
        if expected is None:
            return
        if case.is_exact:  # the definition has every product twice, and the kernel is the same
            assert_close(phi.queries(x) @ phi.keys(x).mT, expected @ expected.mT)
        else:
            assert_close(phi.queries(x), expected)
            assert_close(phi.keys(x), expected)

    def test_log_kernel_is_the_logarithm_of_the_kernel(self, case):
        phi = case.make()
        if case.is_own and (type(phi).log_kernel is FeatureMap.log_kernel or not case.is_exact):
            return
        q, k = torch.randn(2, 3, 2, 50, 6, dtype=torch.float64)
        k[:, :, :2], k[:, :, 2:4] = q[:, :, :2] * 0.3, -q[:, :, 2:4]  # at an angle of zero and of pi
        pairs = phi.log_kernel(q, k).diagonal(dim1=-2, dim2=-1).exp()
        kernel = (phi.queries(q) * phi.keys(k)).sum(-1) if case.is_own else case.kernel(q, k)
        assert_close(pairs, kernel, rtol=1e-5, atol=1e-9)
        assert_close(phi.log_kernel(q, k[:, :, :5])[:, :, 7], phi.log_kernel(q[:, :, 7:8], k)[:, :, 0, :5])

    def test_random_features_are_those_that_a_redraw_changes(self, case):
        phi = case.make()
        before = [x.clone() for x in (*phi.parameters(), *phi.buffers())]
        if phi.has_random_features:
            phi.redraw(1)
        changed = any(not torch.equal(x, y) for x, y in zip((*phi.parameters(), *phi.buffers()), before, strict=True))
        assert changed == phi.has_random_features

    def test_homogeneous_maps_and_no_others_ignore_a_temperature(self, case):
        phi, (q, k) = case.make(), torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
        change = reference.linear_weights(*phi.pair(q * 1.5, k * 1.5)) - reference.linear_weights(*phi.pair(q, k))
        largest = change.abs().max().item()
        ignored = largest < 1e-12 if phi.homogeneous else largest > 1e-3
        assert ignored, f"degree is {phi.degree}, and 1.5 times the queries and keys change weights by {largest:.1e}"

    def test_isotropic_maps_and_no_others_ignore_a_rotation(self, case):
        """Random maps do so only in the mean over draws."""
        if not case.is_exact:
            return
        phi, (q, k) = case.make(), torch.randn(2, 1, 2, 4, 6, dtype=torch.float64)
        rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
        change = phi.queries(q @ rotation) @ phi.keys(k @ rotation).mT - phi.queries(q) @ phi.keys(k).mT
        largest = change.abs().max().item()
        ignored = largest < 1e-10 if phi.isotropic else largest > 1e-3
        assert ignored, f"isotropic is {phi.isotropic}, and one rotation of q and k changes the kernel by {largest:.1e}"

    def test_pair_has_the_weights_of_the_features(self, case):
        phi, (q, k) = case.make(), torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
        expected = reference.linear_weights(phi.queries(q), phi.keys(k))
        assert_close(reference.linear_weights(*phi.pair(q, k)), expected)

    def test_features_of_some_heads(self, case):
        phi, (q, k) = case.make(num_heads=3), torch.randn(2, 2, 3, 5, 6, dtype=torch.float64)
        scale, (fq, fk) = phi.key_scale(k), phi.pair(q, k)
        for heads in ([2, 0], [1], slice(None), slice(1, 3), slice(0, 1)):
            assert_close(phi.scaled_queries(q[:, heads], scale[:, heads], heads), fq[:, heads])
            assert_close(phi.scaled_keys(k[:, heads], scale[:, heads], None, heads), fk[:, heads])
        assert_close(phi.scaled_queries(q[:, 1], scale[:, 1], 1), fq[:, 1])
        assert_close(phi.scaled_keys(k[:, 1], scale[:, 1], None, 1), fk[:, 1])
        assert_close(phi.scaled_queries(q[0, 1], scale[0, 1], 1), fq[0, 1])
        assert_close(phi.scaled_keys(k[0, 1], scale[0, 1], None, 1), fk[0, 1])

    def test_pair_ignores_masked_keys(self, case):
        """A common scale ignores them, too, where they are the largest."""
        phi, (q, k) = case.make(), torch.randn(2, 2, 2, 9, 6, dtype=torch.float64)
        mask, replaced = torch.arange(9).expand(2, 9) < 5, k.clone()
        replaced[:, :, 5:] = 100.0 if case.is_exact else 2 * phi.projection[:, :4]
        assert_close(phi.pair(q, replaced, mask), phi.pair(q, k, mask), rtol=0, atol=0)
        assert not phi.pair(q, k, mask)[1][:, :, 5:].any()

    def test_pair_is_finite_at_any_norm(self, case):
        phi = case.make().float()
        in_range = not case.is_own or type(phi).scaled_queries is not FeatureMap.scaled_queries
        for size in (1e-3, 1.0, *([1e3] if in_range else [])):
            q, k = torch.randn(2, 3, 2, 50, 6) * size
            fq, fk = phi.pair(q, k)
            with naming(size):
                assert torch.isfinite(fq).all()
                assert torch.isfinite(fk).all()
                assert ((fq @ fk.sum(-2)[..., None]) > 0).all()

    def test_half_precision_and_autocast_give_float32(self, case):
        """Where the map is called by itself. A map of one's own is called by attention alone, in float32 or better."""
        if case.is_own:
            return
        phi, x = case.make().float(), torch.randn(1, 2, 5, 6).bfloat16()
        low = x - 4  # negative entries, which the kernel of elu divides by the largest
        with torch.autocast("cpu", torch.bfloat16):
            features, pair = phi.queries(x), phi.pair(x, x)
            kernel = phi.log_kernel(low, low[:, :, :3])
        assert {features.dtype, pair[0].dtype, pair[1].dtype} == {torch.float32}
        assert_close(features, phi.queries(x.float()), rtol=1e-5, atol=1e-6)
        assert_close(kernel, phi.log_kernel(low.float(), low[:, :, :3].float()), rtol=1e-5, atol=1e-6)

    def test_attention_computes_features_in_float32(self, case):
        """Within autocast, and in a model of 16 bits, whose weights the map casts to the type of its inputs."""
        phi, (q, k, v) = case.make().float(), torch.randn(3, 1, 2, 5, 6)
        q, k = q.bfloat16(), k.bfloat16()
        expected = linear_attention(q.float(), k.float(), v, phi)
        with torch.autocast("cpu", torch.bfloat16):
            assert_close(linear_attention(q, k, v, phi), expected, rtol=1e-5, atol=1e-6)
        types = {x.dtype for x in phi.bfloat16().pair(q.float(), k.float())}
        assert types == {torch.float32}


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case.id)
class TestRandom:
    def test_estimate_is_unbiased_within_the_standard_error(self, case):
        q, k = torch.randn(2, 1, 1, 4, 6, dtype=torch.float64) * 0.7
        phis = [case.make(num_heads=50, seed=seed) for seed in range(60)]
        values = torch.cat([(phi.queries(q) * phi.keys(k)).sum(-1)[0] for phi in phis])  # [draws heads, 4]
        error = values.std(0) / len(values) ** 0.5
        assert ((values.mean(0) - case.kernel(q, k)[0, 0]).abs() < 4.5 * error).all()

    def test_mean_over_draws_ignores_a_rotation_and_one_draw_does_not(self, case):
        q, k = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64) * 0.7
        rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
        phis = [case.make(num_heads=50, seed=seed) for seed in range(60)]
        changes = [p.queries(q @ rotation) * p.keys(k @ rotation) - p.queries(q) * p.keys(k) for p in phis]
        change = torch.cat([x.sum(-1).flatten() for x in changes])
        assert change.abs().median() > 1e-4
        assert change.mean().abs() < 4.5 * change.std() / len(change) ** 0.5

    def test_redraw_is_a_function_of_seed_and_step(self, case):
        phi, other = case.make(), case.make()
        first = phi.projection.clone()
        assert "projection" in phi.state_dict()
        assert not torch.allclose(first[0], first[1])  # each head has its own draw
        phi.redraw(7)
        other.redraw(3)
        other.redraw(7)
        assert torch.equal(phi.projection, other.projection)
        assert not torch.equal(phi.projection, first)
        phi.redraw(0)
        assert torch.equal(phi.projection, first)

    def test_learned_projection_starts_as_the_draw_with_the_gradient_of_the_definition(self, case):
        phi, fixed = case.make(learned=True), case.make()
        assert torch.equal(phi.projection, fixed.projection)
        assert [name for name, _ in phi.named_parameters()] == ["projection"]
        q, k, v, upstream = torch.randn(4, 2, 2, 9, 6, dtype=torch.float64)
        expected = reference.attend(reference.linear_weights(case.features(phi, q), case.features(phi, k)), v)
        out = linear_attention(q, k, v, phi)
        assert_close(out, expected)
        assert_close(linear_attention(q, k, v, fixed), expected)
        fast, slow = (torch.autograd.grad((x * upstream).sum(), phi.projection) for x in (out, expected))
        assert_close(fast, slow)
        assert fixed.has_random_features
        assert not phi.has_random_features
        with pytest.raises(ValueError, match="learned projections are not redrawn"):
            phi.redraw(1)


def test_exact_kernels_ignore_a_rotation_and_a_redraw():
    q, k = torch.randn(2, 1, 2, 4, 6, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    for case in EXACT:
        phi = case.make()
        kernel, rotated = phi.queries(q) @ phi.keys(k).mT, phi.queries(q @ rotation) @ phi.keys(k @ rotation).mT
        with naming(case):
            assert_close(rotated, kernel, rtol=1e-12, atol=1e-12)
            phi.redraw(5)
            assert_close(phi.queries(q) @ phi.keys(k).mT, kernel, rtol=0, atol=0)
