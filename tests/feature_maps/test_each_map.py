"""What is peculiar to one feature map, the random projections, and the numerics that they share."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from performer_string import build_feature_map, build_locality, linear_attention
from performer_string.feature_maps.random import orthogonal_projection
from performer_string.ops import reference
from performer_string.utils.numerics import integer_power
from performer_string.utils.seeds import derive_seed
from tests.helpers.encodings import naming
from tests.helpers.feature_maps import Case


def test_high_orders_where_all_is_along_the_longest_projection():
    """There features are largest: |w| to the power of the order, 11 of 64 dimensions and 18 of 256."""
    v = torch.ones(1, 1, 300, 2)
    decay = build_locality("gaussian", num_heads=1, sigma=60.0)
    for dim, order in ((16, 32), (64, 24), (256, 24)):
        phi = build_feature_map("arc-cosine", head_dim=dim, num_heads=1, num_features=256, order=order)
        row = phi.projection[0, phi.projection[0].norm(dim=-1).argmax()]
        q = k = row.expand(1, 1, 300, dim).clone()
        fq, fk = phi.pair(q, k)
        sums = fq @ fk.sum(-2)[..., None]
        with naming((dim, order)):
            assert sums.isfinite().all()
            assert (sums > 0).all()
            assert_close(linear_attention(q, k, v, phi), v)
            assert_close(linear_attention(q, k, v, phi, locality=decay, positions=torch.zeros(300, 1)), v)


def test_the_logarithm_of_the_elu_kernel_holds_where_features_underflow():
    """Entries of -60 and -800, whose features are below the smallest numbers of float32 and float64."""
    phi = build_feature_map("elu", head_dim=6, num_heads=1)
    q = torch.randn(1, 1, 4, 6, dtype=torch.float64)
    for shift in (-60.0, -800.0):
        small = phi.log_kernel((q - 8).float(), (q - 8 + shift).float())
        assert small.isfinite().all()
        assert_close(small - shift, phi.log_kernel(q - 8, q - 8).float(), rtol=1e-3, atol=1e-3)


def test_bf16_projections_are_not_rounded_again():
    """In a model cast to bf16 the projections are bf16 numbers, and kernels use what features are made of."""
    for name, options in (("favor+", {}), ("favor+hyperbolic", {}), ("arc-cosine", {"order": 4})):
        phi = build_feature_map(name, head_dim=64, num_heads=2, num_features=64, **options).bfloat16()
        q, k, v = torch.randn(3, 1, 2, 50, 64)
        expected = reference.linear_weights(*phi.pair(q, k)) @ v
        with naming(name):
            assert_close(linear_attention(q, k, v, phi), expected, rtol=1e-4, atol=1e-5)


def test_projections_are_orthogonal_in_blocks_with_chi_norms():
    w = orthogonal_projection(200, 10, 4, seed=1).double()
    for block in (w[:, :4], w[:, 4:8], w[:, 8:]):
        gram = block @ block.mT
        assert (gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-5
    squares = w.square().sum(-1).flatten()  # chi-squared with 4 degrees of freedom: mean 4, variance 8
    assert abs(squares.mean() - 4) < 5 * (8 / len(squares)) ** 0.5


def test_projections_are_haar_in_every_direction():
    """Without sign(diag R), QR's Q prefers a direction: its first entry would always have the same sign."""
    w = orthogonal_projection(4000, 3, 3, seed=2).double()
    mean, error = w.mean(0), w.std(0) / 4000**0.5
    assert (mean.abs() < 4.5 * error).all()


def test_hyperbolic_pairs_have_less_variance():
    x, variance = torch.randn(1, 1, 20, 6, dtype=torch.float64), {}
    for name in ("favor+", "favor+hyperbolic"):
        phis = [Case(name).make(num_heads=100, seed=seed) for seed in range(5)]
        variance[name] = torch.cat([(p.queries(x) * p.keys(x)).sum(-1)[0] for p in phis]).var(0).mean()
    assert variance["favor+hyperbolic"] < 0.8 * variance["favor+"]


def test_integer_power():
    x = torch.rand(5, dtype=torch.float64) + 0.5
    for order in (1, 2, 3, 4, 5, 6, 7, 8, 13, 16):
        for in_place, keep in ((False, False), (True, False), (True, True)):
            base = x.clone()
            with naming((order, in_place, keep)):
                assert_close(integer_power(base, order, in_place, keep), x**order)
                assert torch.equal(base, x) or (in_place and not keep)


def test_elu_keeps_the_digits_of_negative_entries():
    """exp(x) - 1 + 1 has none of them left below -17 in float32. The derivative is one at zero, from both sides."""
    phi = build_feature_map("elu", head_dim=6, num_heads=1)
    x = torch.tensor([-80.0, -20.0, -3.0, 0.0, 2.0, 100.0], requires_grad=True)
    features = phi.queries(x)
    (gradient,) = torch.autograd.grad(features.sum(), x)
    for got, wanted in ((features, [1, 3, 101]), (gradient, [1, 1, 1])):
        assert_close(got, torch.cat([x[:3].exp(), torch.tensor(wanted, dtype=x.dtype)]), rtol=1e-6, atol=0)


def test_seeds_of_different_tuples_differ():
    seeds = {derive_seed(a, b) for a in range(30) for b in range(30)} | {derive_seed(112), derive_seed(1, 12, 0)}
    assert len(seeds) == 902


@pytest.mark.parametrize("lower", [False, True])
class TestPolynomial:
    def test_each_pair_is_a_feature_once_at_every_width(self, lower):
        for head_dim in (1, 2, 3, 4, 7):
            phi = build_feature_map("polynomial", head_dim=head_dim, num_heads=2, lower=lower)
            q, k = torch.randn(2, 1, 2, 5, head_dim, dtype=torch.float64)
            fq, fk = phi.queries(q), phi.keys(k)
            assert fq.shape[-1] == phi.num_features
            expected = [reference.polynomial_features(x, head_dim**-0.5, lower) for x in (q, k)]
            with naming(head_dim):
                assert_close(fq @ fk.mT, expected[0] @ expected[1].mT)

    def test_vanishing_norms(self, lower):
        """With the lower orders the constant is left, which gives the mean of the values."""
        phi, (q, k, v) = Case("polynomial", {"lower": lower}).make().float(), torch.randn(3, 1, 2, 5, 6)
        for size in (0.0, 1e-30):
            assert all(torch.isfinite(x).all() for x in phi.pair(size * q, size * k)), size
            if lower:
                out = linear_attention(size * q, size * k, v, phi)
                assert_close(out, v.mean(-2, keepdim=True).expand_as(out))


def test_a_kernel_without_values_leaves_later_ones_alone():
    """Its table is kept for all calls, and that of a fake tensor is of its mode alone."""
    phi, x = build_feature_map("arc-cosine", head_dim=4, num_heads=1, order=9), torch.randn(1, 1, 3, 4)
    for _ in range(2):
        with FakeTensorMode() as mode:
            assert phi.log_kernel(mode.from_tensor(x), mode.from_tensor(x)).shape == (1, 1, 3, 3)
        assert phi.log_kernel(x, x).isfinite().all()
