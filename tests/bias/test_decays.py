"""Locality focusing against its definition, in a plain loop."""

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
from performer_string.bias import DistanceDecay, RelativeBias
from performer_string.bias import base as offsets
from performer_string.ops import reference
from performer_string.ops.layout import TokenLayout

DECAYS = [name for name, kind in LOCALITIES.items() if issubclass(kind, DistanceDecay)]
PROFILES = {
    "gaussian": lambda r, shares: math.exp(-r * r / 2),
    "exponential": lambda r, shares: math.exp(-r),
    "radial": lambda r, shares: sum(w * math.exp(-((r * 2 ** (3 - g)) ** 2) / 2) for g, w in enumerate(shares)),
}


def make(name, **options):
    locality = build_locality(name, num_heads=2, grid=(3, 4), **options).double()
    for parameter in locality.parameters():
        torch.nn.init.normal_(parameter, std=1.0 if name == "table" else 0.5)
    return locality


@pytest.mark.parametrize("grid", [(7,), (3, 4), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("name", DECAYS)
def test_matrix_is_its_formula_in_any_dimension(name, grid):
    locality, positions = make(name), grid_positions(grid, dtype=torch.float64) * 1.3
    matrix, sigma, amplitude = (
        x.detach() for x in (locality.matrix(positions), locality.sigma(), locality.amplitude())
    )
    shares = locality.shares().tolist() if name == "radial" else [None] * 2
    for h in range(2):
        for i, p in enumerate(positions):
            for j, r in enumerate(positions):
                expected = float(amplitude[h]) * PROFILES[name](float((p - r).norm() / sigma[h]), shares[h])
                assert float(matrix[h, i, j]) == pytest.approx(expected)


@pytest.mark.parametrize("name", LOCALITIES)
def test_prefix_tokens_see_and_are_seen_undimmed(name):
    locality, positions = make(name), torch.randn(6, 2, dtype=torch.float64)
    matrix = locality.matrix(positions, num_prefix=2)
    assert (matrix[:, :2] == 1).all()
    assert (matrix[:, :, :2] == 1).all()
    torch.testing.assert_close(matrix[:, 2:, 2:], locality.matrix(positions[2:]))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "favor+", "arc-cosine"])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", LOCALITIES)
def test_attention_dims_the_values_and_the_normaliser_only_if_it_is_to_see_it(name, normalised, kind, masked):
    locality, positions = make(name, normalised=normalised), grid_positions((3, 4), dtype=torch.float64)
    q, k, v = (torch.randn(2, 2, 12, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    rotation = build_encoding("rope-mixed", head_dim=6, num_heads=2).double()(positions)
    mask = torch.rand(2, 12) < 0.7 if masked else None
    given = {"rotation": rotation, "locality": locality, "positions": positions, "num_prefix": 1, "key_mask": mask}
    turned = rotation.rotate(q), rotation.rotate(k)
    if kind == "softmax":
        out, weights = softmax_attention(q, k, v, **given), reference.softmax_weights(*turned, key_mask=mask)
    else:
        phi = build_feature_map(kind, head_dim=6, num_heads=2, num_features=16).double()
        out = linear_attention(q, k, v, phi, **given)
        weights = reference.linear_weights(phi.queries(turned[0]), phi.keys(turned[1]), mask)
    slow = reference.attend(reference.modulated_weights(weights, locality.matrix(positions, 1), normalised), v)
    torch.testing.assert_close(out, slow)
    leaves, weight = [q, k, v, *locality.parameters()], torch.randn_like(slow)
    pairs = [torch.autograd.grad((x * weight).sum(), leaves, retain_graph=True) for x in (out, slow)]
    for fast, plain in zip(*pairs, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(fast, plain)


def test_a_normalised_exponential_is_alibi():
    """softmax(s q.k - |i - j| / sigma), arXiv:2108.12409 without its causal mask; far where no weight is a number."""
    locality, positions = make("exponential", normalised=True, sigma=0.3), grid_positions((60,), dtype=torch.float64)
    q, k, v = torch.randn(3, 1, 2, 60, 6, dtype=torch.float64)
    slopes = 1 / locality.sigma()
    logits = q @ k.mT * 6**-0.5 - slopes[:, None, None] * (positions - positions.T).abs()
    out = softmax_attention(q, k, v, locality=locality, positions=positions)
    torch.testing.assert_close(out, logits.softmax(-1) @ v)
    single = softmax_attention(q.float(), k.float(), v.float(), locality=locality.float(), positions=positions.float())
    torch.testing.assert_close(single.double(), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DECAYS)
def test_starts_where_it_was_told_and_stays_in_bounds(name):
    locality = build_locality(name, num_heads=3, sigma=2.0, amplitude=0.5)
    torch.testing.assert_close(locality.sigma(), torch.full((3,), 2.0))
    torch.testing.assert_close(locality.amplitude(), torch.full((3,), 0.5))
    locality.raw_sigma.data[:] = torch.tensor([-50.0, 0.0, 50.0])
    locality.raw_amplitude.data[:] = torch.tensor([-50.0, 0.0, 50.0])
    assert locality.sigma().tolist() == pytest.approx([0.25, 4.0, 64.0])
    assert locality.amplitude().tolist() == pytest.approx([0.0, 1.0, 2.0])


@pytest.mark.parametrize("name", LOCALITIES)
def test_gradients_are_finite_at_distance_zero(name):
    locality, positions = make(name), torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    locality.matrix(positions).sum().backward()
    assert torch.isfinite(positions.grad).all()
    for parameter in locality.parameters():
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gausian", {}, "unknown locality 'gausian'. Did you mean 'gaussian'"),
        ("gaussian", {"sigmas": 2.0}, "no option 'sigmas'. Did you mean 'sigma'"),
        ("gaussian", {"sigma": 0.0}, "0 < 0.25 < sigma < 64.0, not 0.0"),
        ("gaussian", {"amplitude": 3.0}, "between 0 and max_amplitude=2.0, not 3.0"),
        ("radial", {"amplitude": 0.5, "normalised": True}, "a normalised decay has no amplitude"),
        ("radial", {"max_amplitude": 3.0, "normalised": True}, "a normalised decay has no amplitude"),
        ("gaussian", {"num_heads": 0}, "num_heads has to be positive, not 0"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_locality(name, **{"num_heads": 2, **options})


@pytest.mark.parametrize("name", DECAYS)
def test_a_normalised_decay_ends_where_it_is_negligible(name):
    locality = build_locality(name, num_heads=1, sigma=2.0, normalised=True).double()
    (widths,) = locality.components()[1].tolist()
    (split,) = locality.splits(widths, 2)
    at_its_end = locality.of_offsets(torch.tensor([split.radius], dtype=torch.float64))
    assert 1e-12 < float(at_its_end.detach()) < 2.5e-11


class Own(RelativeBias):
    """A kernel of one's own, of `of_offsets` alone: a cone with a learned steepness, zero beyond a distance."""

    def __init__(self, normalised, far=9.0, heads=1):
        super().__init__(2, normalised)
        self.far, self.steepness = far, torch.nn.Parameter(torch.rand(heads, dtype=torch.float64) + 0.5)

    def of_offsets(self, offsets):
        distance = offsets.abs().sum(-1)
        assert distance.max() <= 23 + 17  # no more than between two tokens of the grid below
        cone = (1 - distance / self.far).clamp(min=0)
        steepness = self.steepness.view(-1, *[1] * cone.ndim)
        return torch.where(cone > 0, torch.where(cone > 0, cone, 1.0) ** steepness, 0.0)


@pytest.mark.parametrize("dense", [0, 10**6])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", ["softmax", "arc-cosine"])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_kernel_of_ones_own_needs_its_offsets_alone(normalised, kind, heads, dense, monkeypatch):
    """Exact over a grid too; what it takes out has no weight however large its logit."""
    monkeypatch.setattr(offsets, "DENSE", dense)
    locality, positions = Own(normalised, heads=heads), grid_positions((24, 18), dtype=torch.float64)
    q, k, v = torch.randn(3, 1, 2, 432, 6, dtype=torch.float64)
    q = q * (30 if kind == "softmax" else 1)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16).double()
    if kind == "softmax":
        out = softmax_attention(q, k, v, locality=locality, positions=positions)
        logits = (q @ k.mT * 6**-0.5).detach()
    else:
        out = linear_attention(q, k, v, phi, locality=locality, positions=positions)
        logits = (phi.queries(q) @ phi.keys(k).mT).log()
    decay = locality.matrix(positions).expand(2, -1, -1)
    if normalised:
        weights = (logits + torch.where(decay > 0, torch.where(decay > 0, decay, 1.0).log(), -torch.inf)).softmax(-1)
    else:
        weights = logits.softmax(-1) * decay
    slow, weight = weights @ v, torch.randn_like(v)
    torch.testing.assert_close(out, slow)
    gradients = [torch.autograd.grad((x * weight).sum(), locality.steepness, retain_graph=True) for x in (out, slow)]
    torch.testing.assert_close(*gradients)


def test_a_kernel_of_the_wrong_shape_says_so():
    locality, positions = Own(True, heads=3), grid_positions((4, 3), dtype=torch.float64)
    q = torch.randn(1, 2, 12, 6, dtype=torch.float64)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16).double()
    with pytest.raises(
        ValueError, match=r"Own.of_offsets\(\) has to be \[2, .*or have 1 in place of its 2 heads, not \[3"
    ):
        linear_attention(q, q, q, phi, locality=locality, positions=positions)


def test_widths_and_bounds_are_finite():
    for options in ({"sigma_bounds": (0.25, float("inf"))}, {"max_amplitude": float("inf")}):
        with pytest.raises(ValueError, match="finite"):
            build_locality("gaussian", num_heads=2, **options)
    locality, q = build_locality("gaussian", num_heads=2), torch.randn(1, 2, 400, 6)
    torch.nn.init.constant_(locality.raw_sigma, torch.nan)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16)
    with pytest.raises(ValueError, match=r"widths of head 0 have to be finite, and are \[nan\]"):
        linear_attention(q, q, q, phi, locality=locality, positions=grid_positions((20, 20)))


@pytest.mark.parametrize("name", LOCALITIES)
def test_a_module_in_bf16_rounds_its_parameters_and_nothing_else(name):
    grid = {"grid": (5, 6)} if name == "table" else {"sigma": 3.3}
    low = build_locality(name, num_heads=3, **grid)
    with torch.no_grad():
        for parameter in low.parameters():
            parameter += torch.randn_like(parameter)
    exact, positions = copy.deepcopy(low.bfloat16()).double(), grid_positions((5, 6))
    torch.testing.assert_close(low.matrix(positions).double(), exact.matrix(positions.double()), rtol=1e-5, atol=1e-6)
    for one, other in zip(low.components(), exact.components(), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_positions_have_to_be_given():
    q = torch.randn(1, 2, 5, 6)
    for positions, given in ((None, "none are"), (torch.zeros(4, 2), r"\[4, 2\] is")):
        with pytest.raises(ValueError, match=f"positions of all 5 tokens.*; {given} given"):
            softmax_attention(q, q, q, locality=build_locality("gaussian", num_heads=2), positions=positions)


def test_a_locality_has_the_heads_of_the_queries():
    phi = build_feature_map("favor+", head_dim=8, num_heads=4)
    q, positions, one = torch.randn(1, 4, 6, 8), grid_positions((2, 3)), build_locality("gaussian", num_heads=1)
    for attend in (softmax_attention, partial(linear_attention, phi=phi)):
        with pytest.raises(ValueError, match="the locality has 1 heads, the queries have 4: build it with num_heads=4"):
            attend(q, q, q, locality=one, positions=positions)
        with pytest.raises(TypeError, match="a locality is what build_locality gives, not a str"):
            attend(q, q, q, locality="gaussian", positions=positions)


@pytest.mark.parametrize("num_prefix", [0, 2])
def test_few_tokens_are_summed_in_full(monkeypatch, num_prefix):
    """Exactly, where a window leaves out what is far; and beyond `DENSE` tokens not."""
    locality, positions = make("gaussian", sigma=1.0), grid_positions((24, 11), dtype=torch.float64)
    positions = torch.cat([torch.zeros(num_prefix, 2, dtype=torch.float64), positions])
    fq, fk, v = (torch.rand(1, 2, len(positions), 40, dtype=torch.float64) for _ in range(3))
    exact = reference.attenuated(fq, fk, v, locality.matrix(positions, num_prefix), num_prefix)
    errors = []
    for dense in (len(positions), len(positions) - 1):
        monkeypatch.setattr(offsets, "DENSE", dense)
        errors.append(
            float(
                (locality.numerator(fq, fk, v, TokenLayout(positions, num_prefix=num_prefix)) - exact).norm()
                / exact.norm()
            )
        )
    assert errors[0] < 1e-12 < errors[1] < 1e-3
