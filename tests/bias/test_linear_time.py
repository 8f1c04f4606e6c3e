"""Locality focusing in linear time against its definition: values and gradients, regimes, grids, prefix tokens."""

from __future__ import annotations

import pytest
import torch

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias import DistanceDecay
from performer_string.bias.decays import REACH
from performer_string.bias.linear_time import plan as focusing
from performer_string.bias.linear_time.recompute import SLAB
from performer_string.ops import reference
from performer_string.ops.layout import Grid, TokenLayout
from performer_string.utils import log as logs
from tests.helpers.decays import GRADIENT, GRID, WINDOW, compare, decay, definition, inputs, take

GRIDS = [(80,), (13, 18), (5, 6, 7)]


@pytest.mark.parametrize("share", [None, 0.1, 0.5, 1, 2])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(
    ("name", "regime"), [*((n, r) for n in ("gaussian", "radial") for r in ("window", "grid")), ("radial", "both")]
)
def test_the_regimes_are_the_definition_within_their_bounds(regime, name, grid, share, monkeypatch):
    """At sigma from half a patch to twice the grid, with prefix tokens."""
    take(monkeypatch, regime)
    locality = decay(name, 0.5 if share is None else share * max(grid))
    positions = torch.cat([torch.zeros(2, len(grid)), 0.7 + grid_positions(grid)]).double()
    fq, fk, v = inputs(len(positions))
    slow = reference.attenuated(fq, fk, v, definition(locality, positions), 2)
    bound = WINDOW if regime == "window" else GRID
    value, gradients = compare(
        locality.numerator(fq, fk, v, TokenLayout(positions, num_prefix=2)), slow, [fq, fk, v, *locality.parameters()]
    )
    assert value < bound
    assert max(gradients) < (10 * WINDOW if regime == "window" else GRADIENT)


EXPONENTIAL = [((200,), 0.7), ((200,), 30), ((200,), 390), ((13, 18), 1), ((26, 33), 8), ((26, 33), 13), ((26, 33), 66)]


EXPONENTIAL += [((5, 6, 7), 4), ((5, 6, 7), 14)]


@pytest.mark.parametrize("regime", ["window", "grid", "both"])
@pytest.mark.parametrize(("grid", "sigma"), EXPONENTIAL)
def test_the_exponential(grid, sigma, regime, monkeypatch):
    if regime != "window" and sigma < 4:
        pytest.skip("a grid's nodes would lie closer than the tokens")
    take(monkeypatch, regime)
    locality, positions = decay("exponential", sigma), grid_positions(grid, dtype=torch.float64)
    fq, fk, v = inputs(len(positions))
    slow = reference.attenuated(fq, fk, v, definition(locality, positions))
    fast = locality.numerator(fq, fk, v, TokenLayout(positions))
    value, (*gradients, of_sigma, of_amplitude) = compare(fast, slow, [fq, fk, v, *locality.parameters()])
    assert value < GRID
    assert max(*gradients, of_amplitude) < GRADIENT
    wide = regime == "grid" and sigma >= max(grid)  # all is near the kink, which no Gaussian has
    assert of_sigma < (0.15 if wide else GRADIENT)


@pytest.mark.parametrize("map_name", ["favor+", "arc-cosine"])
@pytest.mark.parametrize("sigma", [1.0, 20.0])
def test_attention_with_masks_and_prefix_tokens(map_name, sigma):
    """The masked keys have no say; the denominator does not see lambda."""
    grid, locality = (16, 21), decay("gaussian", sigma)
    positions = torch.cat([torch.zeros(1, 2), grid_positions(grid, centred=True)]).double()
    q, k, v = (torch.randn(2, 2, len(positions), 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    v = (v.detach() + 1).requires_grad_()
    phi = build_feature_map(map_name, head_dim=6, num_heads=2, num_features=8).double()
    mask = torch.rand(2, len(positions)) > 0.3
    fast = linear_attention(q, k, v, phi, locality=locality, positions=positions, num_prefix=1, key_mask=mask)
    full = definition(locality, positions).clone()
    full[:, 0] = 1
    full[:, :, 0] = 1
    slow = reference.attend(reference.linear_weights(phi.queries(q), phi.keys(k), mask) * full, v)
    value, gradients = compare(fast, slow, [q, k, v, *locality.parameters()])
    assert value < GRID
    assert max(gradients) < GRADIENT
    bare = linear_attention(q, k, v, phi, key_mask=mask)
    assert (bare - slow).norm() > 2 * GRID * slow.norm()  # the test would see lambda left out


@pytest.mark.parametrize("slab", [2**21, 2**9], ids=["whole", "slabs"])
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("sigma", [0.6, 1.3, 20.0])
@pytest.mark.parametrize("name", ["gaussian", "exponential", "radial"])
def test_a_normalised_decay_where_what_is_near_weighs_next_to_nothing(name, sigma, prefix, slab, monkeypatch):
    """Half of the keys weigh 1e-5 of the others, so that five sigma on, others still decide: a window that ends where
    it may for an attention that has been normalised would leave them out."""
    monkeypatch.setitem(SLAB, "cpu", slab)
    grid, locality = (18, 13), build_locality(name, num_heads=2, sigma=sigma, normalised=True).double()
    positions = torch.cat([torch.zeros(prefix, 2), grid_positions(grid)]).double()
    q, k, v = (torch.randn(2, 2, len(positions), 6, dtype=torch.float64) for _ in range(3))
    k[:, :, 118:] *= 1e-5 ** (1 / 3)
    leaves = [x.requires_grad_() for x in (q, k, v + 1)]
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16, order=3).double()
    mask = torch.rand(2, len(positions)) > 0.2

    def error():
        given = {"positions": positions, "num_prefix": prefix, "key_mask": mask}
        fast = linear_attention(*leaves, phi, locality=locality, **given)
        weights = reference.linear_weights(phi.queries(q), phi.keys(k), mask)
        slow = reference.attend(
            reference.modulated_weights(weights, locality.matrix(positions, prefix), True), leaves[2]
        )
        value, gradients = compare(fast, slow, [*leaves, *locality.parameters()])
        return max(value, *gradients)

    assert error() < WINDOW
    if (name, sigma, prefix) == ("gaussian", 1.3, 0):
        monkeypatch.setattr(DistanceDecay, "FAR", REACH)
        assert error() > 10 * WINDOW


def test_the_regimes_are_chosen_by_cost_and_heads_go_their_own_ways():
    locality, lattice = decay("gaussian", 2.0), Grid((64, 64, 1), (1.0, 1.0, 1.0), 2)
    with torch.no_grad():
        locality.raw_sigma[1] = decay("gaussian", 31.0).raw_sigma[0]
    small, large = focusing.choose(locality, lattice, 256, 64)
    assert (small.radius, small.cell) == ((7, 7, 0), None)
    assert (large.radius, large.cell) == (None, (15, 15, 1))
    radial = focusing.choose(decay("radial", 60.0), lattice, 256, 64)[0]
    assert radial.radius is not None
    assert radial.cell is not None  # the narrow scales in a window, the wide ones through the grid


@pytest.mark.parametrize("name", ["gaussian", "exponential", "radial"])
def test_cost_grows_with_the_tokens_alone(name):
    locality, costs = decay(name, 6.0), []
    for n in (128, 256, 512):
        lattice = Grid((n, n, 1), (1.0, 1.0, 1.0), 2)
        plan = focusing.choose(locality, lattice, 64, 32)[0]
        costs.append(plan.cost(lattice, 64, 32, 4) / n**2)
    assert costs[2] < 1.1 * costs[1] < 1.3 * costs[0]


def test_a_redraw_before_the_backward_pass_is_an_error(monkeypatch):
    """The backward pass would compute other features again than those of the forward pass."""
    monkeypatch.setitem(SLAB, "cpu", 2**11)
    phi, positions = build_feature_map("favor+", head_dim=6, num_heads=2, num_features=8), grid_positions((20, 20))
    q = torch.randn(1, 2, 400, 6, requires_grad=True)
    locality = build_locality("gaussian", num_heads=2, sigma=9.0)
    out = linear_attention(q, q, q, phi, locality=locality, positions=positions)
    phi.redraw(1)
    with pytest.raises(RuntimeError, match="redraw after the backward pass"):
        out.sum().backward()


def test_float32_and_autocast():
    positions = grid_positions((20, 20))
    locality = build_locality("gaussian", num_heads=2, sigma=9.0)
    q, k, v = (torch.randn(1, 2, 400, 6) for _ in range(3))
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=8)
    exact = linear_attention(q, k, v, phi, locality=locality, positions=positions.clone().requires_grad_())
    for dtype, bound in ((torch.float32, 0.03), (torch.bfloat16, 0.05)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = linear_attention(*(x.to(dtype) for x in (q, k, v)), phi, locality=locality, positions=positions)
        assert out.dtype == dtype
        assert float(((out.float() - exact).norm() / exact.norm()).detach()) < bound


def test_off_a_grid_and_with_positions_that_learn_the_sum_is_exact():
    locality, (fq, fk, v) = decay("gaussian", 20.0), inputs(60)
    scattered = torch.rand(60, 2, dtype=torch.float64) * 8
    slow = reference.attenuated(fq, fk, v, definition(locality, scattered))
    torch.testing.assert_close(locality.numerator(fq, fk, v, TokenLayout(scattered)), slow)
    learned = grid_positions((6, 10), dtype=torch.float64).requires_grad_()
    out = locality.numerator(fq, fk, v, TokenLayout(learned))
    torch.testing.assert_close(out, reference.attenuated(fq, fk, v, definition(locality, learned.detach())))
    assert torch.autograd.grad(out.sum(), learned)[0].abs().max() > 0


def test_positions_that_are_no_grid_are_told_of_once(caplog):
    """As (x, y) instead of (row, column): the same weights in quadratic time. A warning, which is seen by default."""
    logs._warned.clear()
    locality, rows = build_locality("gaussian", num_heads=2), grid_positions((20, 15))
    assert locality.grid_of(TokenLayout(rows)) is not None
    assert not caplog.text
    assert locality.grid_of(TokenLayout(rows.flip(-1))) is None
    assert locality.grid_of(TokenLayout(rows.flip(-1))) is None
    assert caplog.text.count("300 positions are no row-major grid") == 1
    assert caplog.records[0].levelname == "WARNING"
    assert locality.grid_of(TokenLayout(grid_positions((3, 4, 5, 5)))) is None
    assert "300 positions have 4 axes, and grids are known of up to three: weights are N x N" in caplog.text


def test_learned_positions_are_a_grid_where_no_gradient_is_taken():
    locality, positions = build_locality("gaussian", num_heads=2), grid_positions((20, 15)).requires_grad_()
    assert locality.grid_of(TokenLayout(positions)) is None
    with torch.no_grad():
        assert locality.grid_of(TokenLayout(positions)) is not None
