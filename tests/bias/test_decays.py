"""Relative biases against their definition, in a plain loop, and in attention by N x N matrices."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch

from performer_string import (
    LOCALITIES,
    build_encoding,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from performer_string.bias import DistanceDecay
from performer_string.ops import reference
from performer_string.ops.layout import TokenLayout
from tests.helpers.cases import case
from tests.helpers.decays import Cone, assert_equal, numerator

DECAYS = [name for name, kind in LOCALITIES.items() if issubclass(kind, DistanceDecay)]
# Every locality, and decays with a sigma for each axis.
CASES = [*((name, {}) for name in LOCALITIES), *((name, {"sigma": [1.5, 0.7]}) for name in DECAYS)]
PROFILES = {
    "gaussian": lambda r, shares: math.exp(-r * r / 2),
    "exponential": lambda r, shares: math.exp(-r),
    "radial": lambda r, shares: sum(w * math.exp(-((r * 2 ** (3 - g)) ** 2) / 2) for g, w in enumerate(shares)),
}


def make(name, grid=(3, 4), **options):
    locality = build_locality(name, num_heads=2, grid=grid, **options).double()
    for parameter in locality.parameters():
        torch.nn.init.normal_(parameter, std=1.0 if name == "table" else 0.5)
    return locality


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize("each_axis", [False, True], ids=["one sigma", "a sigma for each axis"])
def test_matrix_is_the_formula(name, each_axis):
    for grid in ((7,), (3, 4), (2, 3, 2)):
        options = {"sigma": [1.5, 0.7, 3.0][: len(grid)]} if each_axis else {}
        locality, positions = make(name, grid, **options), grid_positions(grid, dtype=torch.float64) * 1.3
        with torch.no_grad():
            matrix, sigma, amplitude = locality.matrix(positions), locality.sigma(), locality.amplitude()
        assert sigma.shape == ((2, len(grid)) if each_axis else (2,))
        shares = locality.shares().tolist() if name == "radial" else [None] * 2
        for h in range(2):
            for i, p in enumerate(positions):
                for j, r in enumerate(positions):
                    expected = float(amplitude[h]) * PROFILES[name](float(((p - r) / sigma[h]).norm()), shares[h])
                    assert float(matrix[h, i, j]) == pytest.approx(expected)


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize("normalised", [False, True])
def test_a_fixed_decay_is_the_learned_one_without_its_gradients(name, normalised):
    grid, options = (3, 4), {"sigma": 1.5, "normalised": normalised}
    learned, fixed = (build_locality(name, num_heads=2, grid=grid, fixed=each, **options) for each in (False, True))
    assert all(p.requires_grad for p in learned.parameters())
    assert not any(p.requires_grad for p in fixed.parameters())
    phi, positions = build_feature_map("arc-cosine", head_dim=4, num_heads=2, num_features=8), grid_positions(grid)
    q, k, v = (torch.randn(1, 2, 12, 4, requires_grad=True) for _ in range(3))
    both = [linear_attention(q, k, v, phi, locality=each, positions=positions) for each in (learned, fixed)]
    torch.testing.assert_close(*both)
    torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in both))


def test_matrix_is_one_from_and_to_prefix_tokens():
    for name in LOCALITIES:
        locality, positions = make(name), torch.randn(6, 2, dtype=torch.float64)
        for matrix, one, patches in (
            (locality.matrix(positions, 2), 1, locality.matrix(positions[2:])),
            (locality.log_matrix(positions, 2), 0, locality.matrix(positions[2:]).log()),
        ):
            assert (matrix[:, :2] == one).all()
            assert (matrix[:, :, :2] == one).all()
            torch.testing.assert_close(matrix[:, 2:, 2:], patches)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("name", "chosen"), CASES, ids=str)
def test_attention_is_the_definition_with_every_gradient(name, chosen, normalised):
    """The denominator has the bias only if it is normalised; masked keys take no part."""
    for kind in ("softmax", "favor+", "arc-cosine"):
        for masked in (False, True):
            with case(kind, masked):
                locality = make(name, normalised=normalised, **chosen)
                positions = grid_positions((3, 4), dtype=torch.float64)
                q, k, v = (torch.randn(2, 2, 12, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
                rotation = build_encoding("rope-mixed", head_dim=6, num_heads=2).double()(positions)
                mask = torch.rand(2, 12) < 0.7 if masked else None
                options = {"locality": locality, "positions": positions, "num_prefix": 1}
                options |= {"rotation": rotation, "key_mask": mask}
                rotated_q, rotated_k = rotation.rotate(q), rotation.rotate(k)
                if kind == "softmax":
                    out = softmax_attention(q, k, v, **options)
                    weights = reference.softmax_weights(rotated_q, rotated_k, key_mask=mask)
                else:
                    phi = build_feature_map(kind, head_dim=6, num_heads=2, num_features=16).double()
                    out = linear_attention(q, k, v, phi, **options)
                    weights = reference.linear_weights(phi.queries(rotated_q), phi.keys(rotated_k), mask)
                weights = reference.modulated_weights(weights, locality.matrix(positions, 1), normalised)
                assert_equal(out, reference.attend(weights, v), [q, k, v, *locality.parameters()])


def test_normalised_exponential_is_alibi():
    """softmax(s q.k - |i - j| / sigma), arXiv:2108.12409 without its causal mask; also where lambda underflows."""
    locality, positions = make("exponential", normalised=True, sigma=0.3), grid_positions((60,), dtype=torch.float64)
    q, k, v = torch.randn(3, 1, 2, 60, 6, dtype=torch.float64)
    slopes = 1 / locality.sigma()
    logits = q @ k.mT * 6**-0.5 - slopes[:, None, None] * (positions - positions.T).abs()
    out = softmax_attention(q, k, v, locality=locality, positions=positions)
    torch.testing.assert_close(out, logits.softmax(-1) @ v)
    single = softmax_attention(q.float(), k.float(), v.float(), locality=locality.float(), positions=positions.float())
    torch.testing.assert_close(single.double(), out, rtol=1e-4, atol=1e-5)


def test_parameters_start_as_asked_and_stay_in_bounds():
    for name in DECAYS:
        locality = build_locality(name, num_heads=3, sigma=2.0, amplitude=0.5)
        torch.testing.assert_close(locality.sigma(), torch.full((3,), 2.0))
        torch.testing.assert_close(locality.amplitude(), torch.full((3,), 0.5))
        locality.raw_sigma.data[:] = torch.tensor([-50.0, 0.0, 50.0])
        locality.raw_amplitude.data[:] = torch.tensor([-50.0, 0.0, 50.0])
        assert locality.sigma().tolist() == pytest.approx([0.25, 4.0, 64.0])
        assert locality.amplitude().tolist() == pytest.approx([0.0, 1.0, 2.0])
        assert set(locality.learned()) == {"sigma", "amplitude"}
        assert set(build_locality(name, num_heads=3, normalised=True).learned()) == {"sigma"}
        each_axis = build_locality(name, num_heads=3, sigma=[2.0, 3.0])
        torch.testing.assert_close(each_axis.sigma(), torch.tensor([[2.0, 3.0]] * 3))
        assert {key: value.shape for key, value in each_axis.learned().items()} == dict.fromkeys(
            ("sigma_0", "sigma_1", "amplitude"), (3,)
        )


def test_gradients_are_finite_at_distance_zero():
    for name, options in CASES:
        locality, positions = make(name, **options), torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
        locality.matrix(positions).sum().backward()
        assert all(torch.isfinite(x.grad).all() for x in (positions, *locality.parameters())), name


def test_normalised_decay_ends_where_it_is_negligible():
    for name in DECAYS:
        locality = build_locality(name, num_heads=1, sigma=2.0, normalised=True).double()
        (widths,) = locality.components()[1].tolist()
        (split,) = locality.splits(widths, 2)
        at_its_end = locality.of_offsets(torch.tensor([split.radius], dtype=torch.float64))
        assert 1e-12 < float(at_its_end.detach()) < 2.5e-11, name


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "grid"])
@pytest.mark.parametrize("normalised", [False, True])
def test_subclass_needs_of_offsets_alone(normalised, dense):
    """Its sum is exact over a grid too; keys where it is zero have no weight however large their logit."""
    for kind in ("softmax", "arc-cosine"):
        for heads in (1, 2):
            with case(kind, heads):
                locality, positions = Cone(normalised, heads=heads), grid_positions((24, 18), dtype=torch.float64)
                locality.max_dense_tokens = 10**6 if dense else 0
                q, k, v = torch.randn(3, 1, 2, 432, 6, dtype=torch.float64)
                if kind == "softmax":
                    q = q * 30
                    out = softmax_attention(q, k, v, locality=locality, positions=positions)
                    logits = (q @ k.mT * 6**-0.5).detach()
                else:
                    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16).double()
                    out = linear_attention(q, k, v, phi, locality=locality, positions=positions)
                    logits = (phi.queries(q) @ phi.keys(k).mT).log()
                factors = locality.matrix(positions)
                if normalised:
                    positive = factors > 0
                    logs = torch.where(positive, torch.where(positive, factors, 1.0).log(), -torch.inf)
                    weights = (logits + logs).softmax(-1)
                else:
                    weights = logits.softmax(-1) * factors
                assert_equal(out, weights @ v, [locality.steepness])


def test_bf16_module_rounds_its_parameters_and_nothing_else():
    for name, chosen in CASES:
        options = chosen or {"table": {"grid": (5, 6)}, "kerple": {}}.get(name, {"sigma": 3.3})
        low = build_locality(name, num_heads=3, **options)
        with torch.no_grad():
            for parameter in low.parameters():
                parameter += torch.randn_like(parameter)
        exact, positions = copy.deepcopy(low.bfloat16()).double(), grid_positions((5, 6))
        pairs = [(low.matrix(positions), exact.matrix(positions.double()))]
        for a, b in [*pairs, *zip(low.components(), exact.components(), strict=True)]:
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_few_tokens_are_summed_exactly():
    """Up to `max_dense_tokens` exactly; beyond, without what lies outside the window."""
    for num_prefix in (0, 2):
        with case(num_prefix):
            locality, patches = make("gaussian", sigma=1.0), grid_positions((24, 11), dtype=torch.float64)
            positions = torch.cat([torch.zeros(num_prefix, 2, dtype=torch.float64), patches])
            fq, fk, v = (torch.rand(1, 2, len(positions), 40, dtype=torch.float64) for _ in range(3))
            exact = reference.attend_attenuated(fq, fk, v, locality.matrix(positions, num_prefix), num_prefix)
            errors = []
            for most in (len(positions), len(positions) - 1):
                locality.max_dense_tokens = most
                fast = numerator(locality, fq, fk, v, TokenLayout(positions, num_prefix=num_prefix))
                errors.append(float(((fast - exact).norm() / exact.norm()).detach()))
            assert errors[0] < 1e-12 < errors[1] < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
@pytest.mark.parametrize("name", LOCALITIES)
def test_integer_positions_are_those_of_their_numbers(name, dtype):
    """Differences of unsigned numbers, and squares of short ones, do not wrap around."""
    grid, phi = (3, 40), build_feature_map("elu", head_dim=6, num_heads=2)
    locality, positions = make(name, grid), grid_positions(grid, dtype=torch.float64)
    q, k, v = torch.randn(3, 1, 2, len(positions), 6, dtype=torch.float64)
    for most in (0, 10**6):  # over the grid, or for softmax by columns, and by N x N matrices
        locality.max_dense_tokens = most
        for attend in (softmax_attention, partial(linear_attention, phi=phi)):
            integer, real = (
                attend(q, k, v, locality=locality, positions=each) for each in (positions.to(dtype), positions)
            )
            torch.testing.assert_close(integer, real)
