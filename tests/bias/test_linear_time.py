"""Decays in linear time against their definition: values and gradients, plans, grids, prefix tokens."""

from __future__ import annotations

import pytest
import torch

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias import DistanceDecay, base
from performer_string.bias.decays import WINDOW_REACH
from performer_string.bias.linear_time import SumInputs, decayed_sum, plan, recompute
from performer_string.bias.linear_time.recompute import StoredFeatures
from performer_string.ops import reference
from performer_string.ops.layout import Grid, TokenLayout
from performer_string.utils import log as logs
from tests.helpers.cases import case
from tests.helpers.decays import (
    GRADIENT,
    GRID,
    WINDOW,
    assert_within_bounds,
    compare,
    decay,
    definition,
    inputs,
    numerator,
    qkv,
    use_regime,
)

# Grids with sigmas of the exponential decay, in patches.
EXPONENTIAL = [((200,), (0.7, 30, 390)), ((700,), (5,)), ((13, 18), (1,)), ((17, 22), (5, 9, 44)), ((5, 6, 7), (4, 14))]


@pytest.mark.parametrize("grid", [(80,), (13, 18), (5, 6, 7)], ids=str)
@pytest.mark.parametrize(
    ("name", "regime"), [*((n, r) for n in ("gaussian", "radial") for r in ("window", "grid")), ("radial", "both")]
)
@pytest.mark.usefixtures("over_grid")
def test_sum_is_the_definition_within_its_bounds(regime, name, grid, monkeypatch):
    """At sigma from half a patch to twice the grid, or one for each axis, with prefix tokens and steps that differ."""
    use_regime(monkeypatch, regime)
    each_axis = [share * n for share, n in zip((0.6, 0.15, 0.4), grid, strict=False)]
    steps = torch.tensor([1.0, 0.5, 0.75])[: len(grid)]
    for sigma in (0.5, *(share * max(grid) for share in (0.1, 0.5, 1, 2)), each_axis, each_axis[::-1]):
        with case("sigma", sigma):
            locality = decay(name, sigma)
            positions = torch.cat([torch.zeros(2, len(grid)), 0.7 + grid_positions(grid) * steps]).double()
            fq, fk, v = inputs(len(positions))
            slow = reference.attend_attenuated(fq, fk, v, definition(locality, positions), 2)
            fast = numerator(locality, fq, fk, v, TokenLayout(positions, num_prefix=2))
            assert_within_bounds(fast, slow, [fq, fk, v, *locality.parameters()], regime)


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["window", "grid", "both"])
@pytest.mark.usefixtures("over_grid")
def test_exponential_sum_is_the_definition_within_its_bounds(regime, monkeypatch):
    use_regime(monkeypatch, regime)
    for grid, sigmas in EXPONENTIAL:
        for sigma in sigmas:
            if regime != "window" and sigma < 4:
                continue  # nodes would lie closer than the tokens
            with case(grid, sigma):
                locality, positions = decay("exponential", sigma), grid_positions(grid, dtype=torch.float64)
                fq, fk, v = inputs(len(positions))
                slow = reference.attend_attenuated(fq, fk, v, definition(locality, positions))
                fast = numerator(locality, fq, fk, v, TokenLayout(positions))
                value, (*gradients, of_sigma, of_amplitude) = compare(fast, slow, [fq, fk, v, *locality.parameters()])
                assert value < (WINDOW if regime == "window" else GRID)
                assert max(*gradients, of_amplitude) < GRADIENT
                wide = regime == "grid" and sigma >= max(grid)  # all is close to the kink, which no Gaussian has
                assert of_sigma < (0.15 if wide else GRADIENT)


@pytest.mark.parametrize("sigma", [1.0, 20.0])
def test_attention_with_masks_and_prefix_tokens(sigma):
    """Masked keys take no part; the denominator does not have lambda."""
    for map_name in ("favor+", "arc-cosine"):
        with case(map_name):
            locality = decay("gaussian", sigma)
            positions = torch.cat([torch.zeros(1, 2), grid_positions((16, 21), centred=True)]).double()
            q, k, v = qkv(len(positions))
            phi = build_feature_map(map_name, head_dim=6, num_heads=2, num_features=8).double()
            mask = torch.rand(2, len(positions)) > 0.3
            options = {"positions": positions, "num_prefix": 1, "key_mask": mask}
            fast = linear_attention(q, k, v, phi, locality=locality, **options)
            weights = reference.linear_weights(phi.queries(q), phi.keys(k), mask)
            slow = reference.attend(weights * definition(locality, positions, 1), v)
            assert_within_bounds(fast, slow, [q, k, v, *locality.parameters()], "grid")
            without = linear_attention(q, k, v, phi, key_mask=mask)
            assert (without - slow).norm() > 2 * GRID * slow.norm()  # the test would detect lambda left out


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2**21, 2**9], ids=["whole", "chunks"])
@pytest.mark.parametrize("name", ["gaussian", "exponential", "radial"])
@pytest.mark.usefixtures("over_grid")
def test_normalised_decay_where_close_keys_weigh_next_to_nothing(name, chunk, monkeypatch):
    """Half of the keys weigh 1e-5 of the others, so that others still decide at a distance of five sigma.

    The window of a decay in the numerator alone would leave those out.
    """
    monkeypatch.setitem(recompute.CHUNK_FEATURES, "cpu", chunk)

    def error(sigma, prefix):
        torch.manual_seed(0)
        locality = build_locality(name, num_heads=2, sigma=sigma, normalised=True).double()
        positions = torch.cat([torch.zeros(prefix, 2), grid_positions((18, 13))]).double()
        q, k, v = (torch.randn(2, 2, len(positions), 6, dtype=torch.float64) for _ in range(3))
        k[:, :, 118:] *= 1e-5 ** (1 / 3)
        leaves = [x.requires_grad_() for x in (q, k, v + 1)]
        phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16, order=3).double()
        mask = torch.rand(2, len(positions)) > 0.2
        fast = linear_attention(*leaves, phi, locality=locality, positions=positions, num_prefix=prefix, key_mask=mask)
        weights = reference.linear_weights(phi.queries(q), phi.keys(k), mask)
        weights = reference.modulated_weights(weights, locality.matrix(positions, prefix), True)
        value, gradients = compare(fast, reference.attend(weights, leaves[2]), [*leaves, *locality.parameters()])
        return max(value, *gradients)

    for sigma in (0.6, 1.3, 20.0, [4.0, 0.6]):
        for prefix in (0, 1):
            assert error(sigma, prefix) < WINDOW, (sigma, prefix)
    if name == "gaussian":
        monkeypatch.setattr(DistanceDecay, "CUTOFF", WINDOW_REACH)
        assert error(1.3, 0) > 10 * WINDOW


def test_plans_are_chosen_by_cost_for_each_head():
    locality, grid = decay("gaussian", 2.0), Grid((64, 64, 1), (1.0, 1.0, 1.0), 2)
    with torch.no_grad():
        locality.raw_sigma[1] = decay("gaussian", 31.0).raw_sigma[0]
    small, large = plan.choose_plans(locality, grid, 256, 64)
    assert (small.radius, small.cell) == ((7, 7, 0), None)
    assert (large.radius, large.cell) == (None, (15, 15, 1))
    each_axis = plan.choose_plans(decay("gaussian", [31.0, 17.0], 1), grid, 256, 64)[0]
    assert (each_axis.radius, each_axis.cell) == (None, (15, 8, 1))
    assert plan.choose_plans(decay("gaussian", [0.5, 2.0], 1), grid, 256, 64)[0].radius == (2, 7, 0)
    radial = plan.choose_plans(decay("radial", 60.0), grid, 256, 64)[0]
    assert radial.radius is not None
    assert radial.cell is not None  # the narrow scales in a window, the wide ones through nodes


def test_costs_are_computed_once_while_widths_learn(monkeypatch):
    """Also of a sigma for each axis, to whose learned proportions the grid is scaled."""
    counted, count = [], plan.count_products
    monkeypatch.setattr(plan, "count_products", lambda *arguments: counted.append(arguments) or count(*arguments))
    locality, grid = decay("gaussian", [2.0, 3.0], 1), Grid((40, 24, 1), (1.0, 1.0, 1.0), 2)
    for _ in range(3):
        plan.choose_plans(locality, grid, 251, 64)
        with torch.no_grad():
            locality.raw_sigma[:, 0] += 1e-6
    assert len(counted) == 1


def test_heads_of_different_plans_are_computed_apart():
    """One head through a window between two through nodes: each comes out in its place."""
    locality, positions = decay("gaussian", 0.5, 3), grid_positions((25, 24), dtype=torch.float64)
    with torch.no_grad():
        locality.raw_sigma[::2] = decay("gaussian", 30.0).raw_sigma
    plans = plan.choose_plans(locality, Grid((25, 24, 1), (1.0, 1.0, 1.0), 2), 6, 5)
    assert [p.cell is None for p in plans] == [False, True, False]
    fq, fk, v = inputs(600, heads=3)
    fast = numerator(locality, fq, fk, v, TokenLayout(positions))
    slow = reference.attend_attenuated(fq, fk, v, definition(locality, positions))
    assert_within_bounds(fast, slow, [fq, fk, v, *locality.parameters()], "grid")
    assert (fast[:, 1] - slow[:, 1]).norm() < WINDOW * slow[:, 1].norm()


def test_cost_is_linear_in_the_tokens():
    for name in ("gaussian", "exponential", "radial"):
        locality, costs = decay(name, 6.0), []
        for n in (128, 256, 512):
            grid = Grid((n, n, 1), (1.0, 1.0, 1.0), 2)
            costs.append(plan.predicted_cost(plan.choose_plans(locality, grid, 64, 32)[0], grid, 64, 32, 4) / n**2)
        assert costs[2] < 1.1 * costs[1] < 1.3 * costs[0], name


def test_redraw_before_the_backward_pass_is_an_error(monkeypatch):
    """The backward pass would compute other features again than those of the forward pass."""
    monkeypatch.setitem(recompute.CHUNK_FEATURES, "cpu", 2**11)
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


def test_scattered_and_learned_positions_are_summed_exactly():
    locality, (fq, fk, v) = decay("gaussian", 20.0), inputs(60)
    locality.max_dense_tokens = 0
    scattered = torch.rand(60, 2, dtype=torch.float64) * 8
    slow = reference.attend_attenuated(fq, fk, v, definition(locality, scattered))
    torch.testing.assert_close(numerator(locality, fq, fk, v, TokenLayout(scattered)), slow)
    learned = grid_positions((6, 10), dtype=torch.float64).requires_grad_()
    out = numerator(locality, fq, fk, v, TokenLayout(learned))
    torch.testing.assert_close(out, reference.attend_attenuated(fq, fk, v, definition(locality, learned.detach())))
    assert torch.autograd.grad(out.sum(), learned)[0].abs().max() > 0


def test_positions_without_a_grid_warn_once(caplog):
    """As (x, y) instead of (row, column): the same weights in quadratic time."""
    logs._warned.clear()
    locality, rows = build_locality("gaussian", num_heads=2), grid_positions((20, 15))
    assert locality.grid_of(TokenLayout(rows)) is not None
    assert not caplog.text
    assert [locality.grid_of(TokenLayout(rows.flip(-1))) for _ in range(2)] == [None, None]
    assert caplog.text.count("300 positions are no row-major grid") == 1
    assert caplog.records[0].levelname == "WARNING"
    assert locality.grid_of(TokenLayout(grid_positions((3, 4, 5, 5)))) is None
    assert "300 positions have 4 axes, and grids are known of up to three: weights are N x N" in caplog.text


def test_learned_positions_are_a_grid_without_a_gradient():
    locality, positions = build_locality("gaussian", num_heads=2), grid_positions((20, 15)).requires_grad_()
    assert locality.grid_of(TokenLayout(positions)) is None
    with torch.no_grad():
        assert locality.grid_of(TokenLayout(positions)) is not None


def test_known_grid_is_not_searched_for(monkeypatch):
    monkeypatch.setattr(base, "find_grid", lambda positions: pytest.fail("searched for a grid"))
    locality, grid = build_locality("gaussian", num_heads=2), Grid((20, 15, 1), (1.0, 1.0, 1.0), 2)
    assert locality.grid_of(TokenLayout(grid_positions((20, 15)), grid)) is grid


@pytest.mark.slow
def test_compiled_sum_is_the_same_without_warnings(recwarn):
    """Dynamo traces the plan of the tiles as well, and warns at each call of `functools.lru_cache`."""
    locality, grid = decay("gaussian", 2.0), Grid((80, 1, 1), (1.0, 1.0, 1.0), 1)
    fq, fk, v = inputs(80)

    def total(fq, fk, v):
        return decayed_sum(locality, SumInputs(StoredFeatures(6), fq, fk, v, grid))

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(total, backend="eager")(fq, fk, v), total(fq, fk, v))
    assert not [w for w in recwarn if "lru_cache" in str(w.message)]
