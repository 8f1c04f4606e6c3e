"""The contract of every feature map, and the statistics of their draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from performer_string import FEATURE_MAPS, build_feature_map, build_locality, linear_attention
from performer_string.feature_maps import RandomFeatures
from performer_string.feature_maps.random import orthogonal_projection
from performer_string.ops import reference
from performer_string.utils.numerics import integer_power
from performer_string.utils.seeds import derive_seed

RANDOM = [("favor+", {}), ("favor+hyperbolic", {}), ("favor+", {"scale": 0.5})]
RANDOM += [("arc-cosine", {"order": order}) for order in (1, 2, 3, 4, 8)]
EXACT = [("polynomial", {}), ("polynomial", {"lower": True}), ("polynomial", {"lower": True, "scale": 0.5})]
CASES = [*RANDOM, ("arc-cosine", {"order": 16}), *EXACT]  # order 16 has too heavy a tail for the statistics of draws


def make(case, num_features=16, head_dim=6, num_heads=2, seed=0):
    name, options = case
    if case not in EXACT:
        options = {"num_features": num_features, **options}
    return build_feature_map(name, head_dim=head_dim, num_heads=num_heads, seed=seed, **options).double()


def definition(case, phi, x: Tensor) -> Tensor:
    name, options = case
    scale = options.get("scale", x.shape[-1] ** -0.5)
    if name == "polynomial":
        return reference.polynomial_features(x, scale, options.get("lower", False))
    if name == "arc-cosine":
        return reference.arc_cosine_features(x, phi.projection, options["order"])
    return {"favor+": reference.positive_features, "favor+hyperbolic": reference.hyperbolic_features}[name](
        x, phi.projection, scale
    )


def kernel(case, q: Tensor, k: Tensor) -> Tensor:
    """What phi(q)^T phi(k) estimates, without random features: for relu by quadrature over the plane of q and k."""
    name, options = case
    logits = (q * k).sum(-1) * options.get("scale", q.shape[-1] ** -0.5)
    if name == "polynomial":
        return 1 + logits + logits**2 / 2 if options.get("lower") else logits**2
    if name != "arc-cosine":
        return torch.exp(logits)
    p = options["order"]
    norms = q.norm(dim=-1) * k.norm(dim=-1)
    angle = torch.acos(((q * k).sum(-1) / norms).clamp(-1, 1))
    phase = torch.linspace(0, 2 * math.pi, 20001, dtype=q.dtype)[:-1]
    product = phase.cos().clamp(min=0) * (phase - angle[..., None]).cos().clamp(min=0)
    return 2 * norms**p * 2**p * math.factorial(p) * (product**p).mean(-1)


def test_every_feature_map_is_in_the_contract():
    assert {name for name, _ in CASES} == set(FEATURE_MAPS)
    assert {name for name, _ in RANDOM} == {n for n, kind in FEATURE_MAPS.items() if issubclass(kind, RandomFeatures)}


@pytest.mark.parametrize("case", CASES, ids=str)
class TestEvery:
    def test_features_are_their_definition(self, case):
        phi, x = make(case), torch.randn(3, 2, 5, 6, dtype=torch.float64)
        plain = definition(case, phi, x)
        if case in EXACT:  # the definition has every product twice: the features agree in their kernel
            torch.testing.assert_close(phi.queries(x) @ phi.keys(x).mT, plain @ plain.mT)
            return
        torch.testing.assert_close(phi.queries(x), plain)
        torch.testing.assert_close(phi.keys(x), plain)

    def test_the_width_is_the_number_of_features(self, case):
        phi = make(case)
        assert phi.queries(torch.randn(1, 2, 3, 6, dtype=torch.float64)).shape[-1] == phi.num_features

    def test_log_kernel_is_the_log_of_the_kernel(self, case):
        phi = make(case)
        q, k = torch.randn(2, 3, 2, 50, 6, dtype=torch.float64)
        k[:, :, :2], k[:, :, 2:4] = q[:, :, :2] * 0.3, -q[:, :, 2:4]  # at no angle, and at the widest
        found = phi.log_kernel(q, k).diagonal(dim1=-2, dim2=-1).exp()
        torch.testing.assert_close(found, kernel(case, q, k), rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(
            phi.log_kernel(q, k[:, :, :5])[:, :, 7], phi.log_kernel(q[:, :, 7:8], k)[:, :, 0, :5]
        )

    def test_homogeneous_maps_do_not_see_a_temperature_and_others_do(self, case):
        phi, (q, k) = make(case), torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
        change = reference.linear_weights(*phi.pair(q * 1.5, k * 1.5)) - reference.linear_weights(*phi.pair(q, k))
        assert change.abs().max() < 1e-12 if phi.homogeneous else change.abs().max() > 1e-3

    def test_pair_is_the_features_up_to_what_cancels(self, case):
        phi = make(case)
        q, k = torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
        plain = reference.linear_weights(phi.queries(q), phi.keys(k))
        torch.testing.assert_close(reference.linear_weights(*phi.pair(q, k)), plain)

    def test_pair_does_not_see_masked_keys(self, case):
        """Not even by a common scale, where they are the largest."""
        phi, (q, k) = make(case), torch.randn(2, 2, 2, 9, 6, dtype=torch.float64)
        mask, wild = torch.arange(9).expand(2, 9) < 5, k.clone()
        wild[:, :, 5:] = 100.0 if case in EXACT else 2 * phi.projection[:, :4]
        for found, plain in zip(phi.pair(q, wild, mask), phi.pair(q, k, mask), strict=True):
            assert torch.equal(found, plain)

    @pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
    def test_pairs_stay_finite_at_any_norm(self, case, size):
        phi, (q, k) = make(case).float(), torch.randn(2, 3, 2, 50, 6) * size
        fq, fk = phi.pair(q, k)
        assert torch.isfinite(fq).all()
        assert torch.isfinite(fk).all()
        assert ((fq @ fk.sum(-2)[..., None]) > 0).all()

    def test_features_are_float32_for_half_precision_and_under_autocast(self, case):
        phi, x = make(case).float(), torch.randn(1, 2, 5, 6)
        exact = phi.queries(x.bfloat16().float())
        with torch.autocast("cpu", torch.bfloat16):
            features = phi.queries(x.bfloat16())
            pair = phi.pair(x.bfloat16(), x.bfloat16())
        assert {features.dtype, pair[0].dtype, pair[1].dtype} == {torch.float32}
        torch.testing.assert_close(features, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dim", "order"), [(16, 32), (64, 24), (256, 24)])
def test_high_orders_where_all_lies_along_the_longest_projection(dim, order):
    """There features are largest: to the power of the order |w|, 11 of 64 dimensions and 18 of 256."""
    phi = build_feature_map("arc-cosine", head_dim=dim, num_heads=1, num_features=256, order=order)
    row = phi.projection[0, phi.projection[0].norm(dim=-1).argmax()]
    q = k = row.expand(1, 1, 300, dim).clone()
    fq, fk = phi.pair(q, k)
    sums = fq @ fk.sum(-2)[..., None]
    assert sums.isfinite().all()
    assert (sums > 0).all()
    v = torch.ones(1, 1, 300, 2)
    given = {"locality": build_locality("gaussian", num_heads=1, sigma=60.0), "positions": torch.zeros(300, 1)}
    for options in ({}, given):
        torch.testing.assert_close(linear_attention(q, k, v, phi, **options), v)


@pytest.mark.parametrize(("name", "order"), [("favor+", None), ("favor+hyperbolic", None), ("arc-cosine", 4)])
def test_kernels_do_not_round_what_features_do_not(name, order):
    """Of a model cast to bf16: its projections are bf16 numbers, and what is made of them is not rounded again."""
    options = {} if order is None else {"order": order}
    phi = build_feature_map(name, head_dim=64, num_heads=2, num_features=64, **options).bfloat16()
    q, k, v = torch.randn(3, 1, 2, 50, 64)
    fq, fk = phi.pair(q, k)
    expected = reference.linear_weights(fq, fk) @ v
    torch.testing.assert_close(linear_attention(q, k, v, phi), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_without_a_draw_a_rotation_changes_nothing(case):
    q, k = torch.randn(2, 1, 2, 4, 6, dtype=torch.float64)
    turn, phi = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0], make(case)
    still, turned = phi.queries(q) @ phi.keys(k).mT, phi.queries(q @ turn) @ phi.keys(k @ turn).mT
    torch.testing.assert_close(turned, still, rtol=1e-12, atol=1e-12)
    phi.redraw(5)
    torch.testing.assert_close(phi.queries(q) @ phi.keys(k).mT, still, rtol=0, atol=0)


@pytest.mark.parametrize("case", RANDOM, ids=str)
class TestRandom:
    def test_unbiased_within_the_standard_error(self, case):
        q, k = torch.randn(2, 1, 1, 4, 6, dtype=torch.float64) * 0.7
        draws, heads = 60, 50
        values = torch.cat(
            [
                (phi.queries(q) * phi.keys(k)).sum(-1)[0]
                for phi in (make(case, num_heads=heads, seed=seed) for seed in range(draws))
            ]
        )  # [draws heads, 4]
        error = values.std(0) / len(values) ** 0.5
        assert ((values.mean(0) - kernel(case, q, k)[0, 0]).abs() < 4.5 * error).all()

    def test_mean_over_draws_does_not_see_a_rotation_but_one_draw_does(self, case):
        q, k = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64) * 0.7
        turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
        phis = [make(case, num_heads=50, seed=seed) for seed in range(60)]
        change = torch.cat(
            [(p.queries(q @ turn) * p.keys(k @ turn) - p.queries(q) * p.keys(k)).sum(-1).flatten() for p in phis]
        )
        assert change.abs().median() > 1e-4
        assert change.mean().abs() < 4.5 * change.std() / len(change) ** 0.5

    def test_redraw_is_a_function_of_seed_and_step(self, case):
        phi, other = make(case), make(case)
        first = phi.projection.clone()
        phi.redraw(7)
        other.redraw(3)
        other.redraw(7)
        assert torch.equal(phi.projection, other.projection)
        assert not torch.equal(phi.projection, first)
        phi.redraw(0)
        assert torch.equal(phi.projection, first)

    def test_the_draw_is_in_the_state(self, case):
        assert "projection" in make(case).state_dict()

    def test_a_learned_projection_starts_as_the_draw_and_has_the_gradient_of_the_definition(self, case):
        phi, drawn = make((case[0], {**case[1], "learned": True})), make(case)
        assert torch.equal(phi.projection, drawn.projection)
        assert [name for name, _ in phi.named_parameters()] == ["projection"]
        q, k, v, upstream = torch.randn(4, 2, 2, 9, 6, dtype=torch.float64)
        fast = linear_attention(q, k, v, phi)
        weights = reference.linear_weights(definition(case, phi, q), definition(case, phi, k))
        for out in (fast, linear_attention(q, k, v, drawn)):
            torch.testing.assert_close(out, reference.attend(weights, v))
        torch.testing.assert_close(
            *(
                torch.autograd.grad((out * upstream).sum(), phi.projection)
                for out in (fast, reference.attend(weights, v))
            )
        )
        with pytest.raises(ValueError, match="learned projections are not redrawn"):
            phi.redraw(1)

    def test_heads_have_draws_of_their_own(self, case):
        projection = make(case).projection
        assert not torch.allclose(projection[0], projection[1])


def test_projections_are_orthogonal_in_blocks_with_chi_norms():
    w = orthogonal_projection(200, 10, 4, seed=1).double()
    for block in (w[:, :4], w[:, 4:8], w[:, 8:]):
        gram = block @ block.mT
        off = gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
        assert off.abs().max() < 1e-5
    squares = w.square().sum(-1).flatten()  # chi-squared with 4 degrees of freedom: mean 4, variance 8
    assert abs(squares.mean() - 4) < 5 * (8 / len(squares)) ** 0.5


def test_projections_are_haar_in_every_direction():
    """Without sign(diag R), QR's Q prefers a direction: its first entry would always have the same sign."""
    w = orthogonal_projection(4000, 3, 3, seed=2).double()
    mean, error = w.mean(0), w.std(0) / 4000**0.5
    assert (mean.abs() < 4.5 * error).all()


def test_hyperbolic_pairs_have_less_variance_than_draws():
    x = torch.randn(1, 1, 20, 6, dtype=torch.float64)
    spread = {}
    for name in ("favor+", "favor+hyperbolic"):
        phis = [make((name, {}), num_heads=100, seed=seed) for seed in range(5)]
        spread[name] = torch.cat([(p.queries(x) * p.keys(x)).sum(-1)[0] for p in phis]).var(0).mean()
    assert spread["favor+hyperbolic"] < 0.8 * spread["favor+"]


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])
def test_integer_power(order):
    x = torch.rand(5, dtype=torch.float64) + 0.5
    for in_place, keep in ((False, False), (True, False), (True, True)):
        given = x.clone()
        torch.testing.assert_close(integer_power(given, order, in_place, keep), x**order)
        assert torch.equal(given, x) or (in_place and not keep)


def test_seeds_of_different_tuples_differ():
    seeds = {derive_seed(a, b) for a in range(30) for b in range(30)} | {derive_seed(112), derive_seed(1, 12, 0)}
    assert len(seeds) == 902


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("head_dim", [1, 2, 3, 4, 7])
def test_polynomial_features_have_each_pair_once_at_every_width(head_dim, lower):
    phi = build_feature_map("polynomial", head_dim=head_dim, num_heads=2, lower=lower)
    q, k = torch.randn(2, 1, 2, 5, head_dim, dtype=torch.float64)
    fq, fk = phi.queries(q), phi.keys(k)
    assert fq.shape[-1] == phi.num_features
    expected = [reference.polynomial_features(x, head_dim**-0.5, lower) for x in (q, k)]
    torch.testing.assert_close(fq @ fk.mT, expected[0] @ expected[1].mT)


@pytest.mark.parametrize("size", [0.0, 1e-30])
def test_the_constant_is_what_is_left_of_lower_orders_where_norms_vanish(size):
    """It gives the mean of the values."""
    phi = build_feature_map("polynomial", head_dim=6, num_heads=2, lower=True)
    q, k, v = torch.randn(3, 1, 2, 5, 6)
    assert all(torch.isfinite(x).all() for x in phi.pair(size * q, size * k))
    out = linear_attention(size * q, size * k, v, phi)
    torch.testing.assert_close(out, v.mean(-2, keepdim=True).expand_as(out))
