"""Linear attention in low precision, and at norms from 1e-19 to 1e19: finite, and close to the definition."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from performer_string import (
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    rotated_feature_attention,
    softmax_attention,
)
from performer_string.ops import reference
from tests.helpers.cases import case
from tests.helpers.maps import KINDS, compare, draw, make_map, reference_features

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", ["favor+hyperbolic", "arc-cosine-16", "polynomial-lower"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_close_to_the_definition_in_float64(name, dtype):
    phi = make_map(name, 2, 16, 64)
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in draw((2, 2, 65, 16)))
    out = linear_attention(q, k, v, phi)
    assert out.dtype == dtype
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    features = [reference_features(name, phi.double(), x) for x in exact[:2]]
    expected = reference.attend(reference.linear_weights(*features), exact[2])
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]  # of the rounded output
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(out.float().sum(), [q, k, v])
    for a, b in zip(gradients, torch.autograd.grad(expected.sum(), exact), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=5 * tolerance, atol=5 * tolerance * float(b.abs().max()))


@pytest.mark.parametrize("name", [*KINDS, "elu"])
@pytest.mark.usefixtures("both_sums")
def test_autocast_changes_no_attention_of_float32(name):
    """Whichever way its sums are computed: values, and gradients of what was computed under autocast."""
    phi, (q, k, v), bias = make_map(name, 2, 16, 64), draw((1, 2, 40, 16), torch.float32), torch.randn(1, 2, 40)
    plain, normalised = (build_locality("gaussian", num_heads=2, normalised=each) for each in (False, True))
    places = {"positions": grid_positions((5, 8))}
    ways = {
        "features": lambda: linear_attention(q, k, v, phi),
        "a bias": lambda: linear_attention(q, k, v, phi, key_bias=bias),
        "a locality": lambda: linear_attention(q, k, v, phi, locality=plain, key_bias=bias, **places),
        "a normalised locality": lambda: linear_attention(q, k, v, phi, locality=normalised, key_bias=bias, **places),
        "rotated features": lambda: rotated_feature_attention(q, k, v, phi, key_bias=bias),
        "softmax": lambda: softmax_attention(q, k, v, locality=plain, key_bias=bias, **places),
    }
    for way, attend in ways.items():
        exact = attend()
        with case(way), torch.autocast("cpu", torch.bfloat16):
            out = attend()
        compare(out, exact, [q, k, v], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*KINDS, "elu"])
@pytest.mark.usefixtures("both_sums")
def test_the_type_of_a_bias_changes_nothing(name):
    """A bias is not rounded to the type of the queries, nor computed in its own."""
    phi, bias = make_map(name, 2, 8), (10 + 3 * torch.randn(2, 2, 12)).bfloat16()
    q, k, v = torch.randn(3, 2, 2, 12, 8)
    locality = build_locality("gaussian", num_heads=2)
    for options in ({}, {"locality": locality, "positions": grid_positions((3, 4))}):
        for attend in (
            lambda given, options=options: linear_attention(q, k, v, phi, key_bias=given, **options),
            lambda given, options=options: softmax_attention(q, k, v, key_bias=given, **options),
        ):
            exact = attend(bias.float())
            assert attend(bias.double()).dtype == torch.float32
            for given in (bias, bias.double()):
                torch.testing.assert_close(attend(given), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["favor+hyperbolic", "arc-cosine-1", "arc-cosine-16", "polynomial-lower"])
def test_any_norm_gives_means_of_the_values_and_finite_gradients(name):
    phi = make_map(name, 2, 16, 64)
    for dtype, size in product(DTYPES, (1e-3, 1.0, 30.0, 1e3)):
        leaves = [(torch.randn(1, 2, 40, 16) * scale).to(dtype).requires_grad_() for scale in (size, size, 1.0)]
        out, v = linear_attention(*leaves, phi), leaves[2]
        assert out.isfinite().all(), (dtype, size)
        rounding = 1e-5 + torch.finfo(dtype).eps
        assert (out.abs() <= v.abs().amax(dim=-2, keepdim=True) * (1 + rounding)).all(), (dtype, size)
        # The mean and not the sum, whose gradient at order 16 exceeds float16.
        gradients = torch.autograd.grad(out.float().square().mean(), leaves)
        assert all(x.isfinite().all() for x in gradients), (dtype, size)


@pytest.mark.parametrize("order", [8, 16])
def test_high_orders_with_norms_from_1e_minus_3_to_1e3_side_by_side(order):
    """Weights sum to one whatever the norms, so that every query returns a constant value."""
    phi = build_feature_map("arc-cosine", head_dim=16, num_heads=2, num_features=64, order=order, seed=3)
    sizes = torch.logspace(-3, 3, 40)[:, None]
    for dtype in DTYPES:
        q, k = ((torch.randn(1, 2, 40, 16) * s).to(dtype).requires_grad_() for s in (sizes, sizes.flip(0)))
        v = torch.ones(1, 2, 40, 16, dtype=dtype, requires_grad=True)
        out = linear_attention(q, k, v, phi)
        torch.testing.assert_close(out, torch.ones_like(out))
        gradients = torch.autograd.grad((out * torch.randn_like(out)).sum(), [q, k, v])
        assert all(x.isfinite().all() for x in gradients), dtype


@pytest.mark.parametrize("decay", [False, True], ids=["fused", "locality"])
@pytest.mark.parametrize("order", [1, 16])
def test_keys_of_very_different_norms_and_very_short_vectors(order, decay):
    """Finite numbers, in the limit zero, where float32 cannot hold the sums."""
    phi = build_feature_map("arc-cosine", head_dim=2, num_heads=1, num_features=64, order=order, seed=3)
    given = {"locality": build_locality("gaussian", num_heads=1), "positions": grid_positions((2,)) * 0}
    places = given if decay else {}
    for short in (1e-2, 4e-3, 1e-3, 1e-8, 1e-25):
        for q, k in (([[-1.0, 0]], [[1.0, 0], [-short, 0]]), ([[short, 0]], [[short, 0], [short / 2, 1e-30]])):
            leaves = [torch.tensor([[x]]).requires_grad_() for x in (q * 2, k, [[1.0, 2.0], [2.0, 3.0]])]
            out = linear_attention(*leaves, phi, **places)
            for x in (out, *torch.autograd.grad(out.sum(), leaves)):
                assert x.isfinite().all(), short


@pytest.mark.parametrize("name", ["arc-cosine-8", "polynomial"])
def test_a_bias_of_the_keys_costs_no_digits_in_bfloat16(name):
    """The weight of a key under a homogeneous map is a power of its factor, which is not rounded before."""
    phi = make_map(name, 2, 8)
    q, k, v = torch.randn(3, 1, 2, 200, 8).bfloat16().unbind(0)
    bias = torch.randn(1, 2, 200)
    out = linear_attention(q, k, v, phi, key_bias=bias)
    weighted = linear_attention(q.float(), k.float(), v.float(), phi, key_bias=bias)
    assert out.dtype == torch.bfloat16
    assert (out - weighted).norm() < 4e-3 * weighted.norm()
