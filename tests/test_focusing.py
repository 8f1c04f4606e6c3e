"""Locality focusing in linear time against its definition: values and gradients, regimes, grids, prefix tokens."""

from __future__ import annotations

import pytest
import torch

from performer_string import (
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    logs,
    naive,
)
from performer_string.locality import Locality, focusing
from performer_string.locality.decay import REACH
from performer_string.locality.grid import grid_sum
from performer_string.locality.lattice import Lattice, find_lattice
from performer_string.locality.slabs import SLAB, Given
from performer_string.locality.tiles import bands, slabs
from performer_string.locality.window import window_sum

WINDOW, GRID, GRADIENT = 1e-3, 0.03, 0.05  # bounds on relative errors
GRIDS = [(80,), (13, 18), (5, 6, 7)]
HIGHEST = 400.0


def decay(name, sigma, heads=2):
    """Heads of slightly different sigma, so that they may go different ways."""
    locality = build_locality(name, num_heads=heads, sigma=sigma, sigma_bounds=(0.25, HIGHEST)).double()
    with torch.no_grad():
        locality.raw_sigma += torch.linspace(0, 0.05, heads)
        if name == "radial":
            locality.raw_shares += torch.randn(locality.raw_shares.shape)
    return locality


def definition(locality, positions):
    """lambda by `naive`, from the parameters alone."""
    if "Exponential" in type(locality).__name__:
        return naive.exponential(positions, locality.amplitude(), locality.sigma())
    return naive.gaussians(positions, *locality.components())


def inputs(tokens, features=6, width=5, batch=1, heads=2):
    shapes = [(batch, heads, tokens, c) for c in (features, features, width)]
    fq, fk, v = (torch.rand(shape, dtype=torch.float64) for shape in shapes)
    return fq.requires_grad_(), fk.requires_grad_(), (v - 0.3).requires_grad_()


def compare(fast, slow, leaves):
    """Relative errors of the values and of each gradient, of a sum whose terms do not cancel in that to sigma."""
    weight = torch.rand_like(slow)
    pairs = zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (fast, slow)), strict=True)
    errors = [float((a - b).norm() / b.norm()) for a, b in pairs]
    return float(((fast - slow).norm() / slow.norm()).detach()), errors


def assert_equal(fast, slow, leaves):
    """Values and every gradient."""
    torch.testing.assert_close(fast, slow)
    weight = torch.randn_like(slow)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b)


def take(monkeypatch, regime):
    """Every head goes through the window, through the grid, or the narrow part of its decay through the window."""

    def cost(plan, *_):
        taken = {"window": plan.cell is None, "grid": plan.radius is None}
        return float(not taken.get(regime, not any(taken.values())))

    monkeypatch.setattr(focusing.Plan, "cost", cost)


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
    slow = naive.attenuated(fq, fk, v, definition(locality, positions), 2)
    bound = WINDOW if regime == "window" else GRID
    value, gradients = compare(locality.numerator(fq, fk, v, positions, 2), slow, [fq, fk, v, *locality.parameters()])
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
    slow = naive.attenuated(fq, fk, v, definition(locality, positions))
    fast = locality.numerator(fq, fk, v, positions)
    value, (*gradients, of_sigma, of_amplitude) = compare(fast, slow, [fq, fk, v, *locality.parameters()])
    assert value < GRID
    assert max(*gradients, of_amplitude) < GRADIENT
    wide = regime == "grid" and sigma >= max(grid)  # all is near the kink, which no Gaussian has
    assert of_sigma < (0.15 if wide else GRADIENT)


def test_a_window_over_everything_is_exact_with_every_gradient():
    """At odd sizes, where neither tiles nor bands divide the grid; each tile sees its own part of the table."""
    lattice = Lattice((11, 9, 10), (1.0, 0.5, 2.0), 3)
    positions = grid_positions((11, 9, 10), dtype=torch.float64) * torch.tensor([1.0, 0.5, 2.0])
    locality = decay("gaussian", 3.0)
    fq, fk, v = inputs(990, 3, 2, batch=2)
    slow = naive.attenuated(fq, fk, v, definition(locality, positions))
    fast = window_sum(Given(3), fq, fk, v, locality.of_offsets, lattice, (10, 8, 9))[..., :-1]
    assert_equal(fast, slow, [fq, fk, v, *locality.parameters()])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_tiles_in_a_row_share_a_product(batch):
    """Six tiles away from the edges, in batches over tiles or over heads; the decay has ended within the window."""
    lattice = Lattice((61, 9, 1), (1.0, 1.0, 1.0), 2)
    locality, positions = decay("gaussian", 1.0), grid_positions((61, 9), dtype=torch.float64)
    fq, fk, v = inputs(549, 3, 2, batch=batch)
    slow = naive.attenuated(fq, fk, v, definition(locality, positions))
    fast = window_sum(Given(3), fq, fk, v, locality.of_offsets, lattice, (8, 8, 0))[..., :-1]
    assert_equal(fast, slow, [fq, fk, v, *locality.parameters()])


def test_windows_that_are_apart_share_no_keys():
    """Gradients are added to them at the same time."""
    lattice = Lattice((61, 9, 1), (1.0, 1.0, 1.0), 2)
    (slab,) = slabs(lattice, (9, 8, 0), lattice.tokens)
    runs = [run for _, runs in bands(lattice, (9, 8, 0), slab) for run in runs]
    assert max(run.count for run in runs) >= 4
    for run in runs:
        windows = run.windows(torch.arange(61.0).view(1, 1, 61, 1, 1))[0, 0, :, :, 0]  # rows of the grid
        for one, other in zip(windows, windows[run.apart :], strict=False):
            assert one[-1] < other[0]


def test_nodes_at_every_token_are_exact_and_coarser_ones_worse():
    """The error falls with the spacing; nodes too far apart break the bound, which is why there is one."""
    grid, errors = (24, 31), []
    positions, lattice = grid_positions(grid, dtype=torch.float64), Lattice((24, 31, 1), (1.0, 1.0, 1.0), 2)
    amplitudes, widths = torch.ones(2, 1).double(), torch.full((2, 1), 4.0).double()
    fq, fk, v = (x.detach() for x in inputs(24 * 31))
    v = torch.randn_like(v)  # a signed sum, where errors do not average out
    slow = naive.attenuated(fq, fk, v, naive.gaussians(positions, amplitudes, widths))
    for cell in (1, 2, 4, 6):
        fast = grid_sum(Given(6), fq, fk, v, amplitudes, widths, lattice, (cell, cell, 1))[..., :-1]
        errors.append(float((fast - slow).norm() / slow.norm()))
    assert errors[0] < 2e-3  # what the blur's reach leaves out
    assert errors == sorted(errors)
    assert errors[1] < GRID < errors[2]


def test_a_long_line_is_blurred_in_blocks():
    positions = grid_positions((1500,), dtype=torch.float64)
    locality = decay("gaussian", 12.0)
    fq, fk, v = inputs(1500, 3, 2)
    lattice = find_lattice(positions)
    fast = grid_sum(Given(3), fq, fk, v, *locality.components(), lattice, (6, 1, 1))[..., :-1]
    value, gradients = compare(
        fast, naive.attenuated(fq, fk, v, definition(locality, positions)), [fq, fk, v, *locality.parameters()]
    )
    assert value < GRID
    assert max(gradients) < GRADIENT


@pytest.mark.parametrize("given", [False, True], ids=["own-sums", "given-sums"])
def test_blocks_of_values_change_nothing(monkeypatch, given):
    positions = grid_positions((12, 17), dtype=torch.float64)
    locality, (fq, fk, v) = decay("gaussian", 6.0, 3), inputs(204, 6, 40, heads=3)
    total = torch.randn(1, 3, 6, 1, dtype=torch.float64, requires_grad=True) if given else None
    lattice, leaves = find_lattice(positions), [fq, fk, v, *locality.parameters(), *([total] if given else [])]
    weight, found = torch.randn(1, 3, 204, 41, dtype=torch.float64), []
    for sums in (1e9, 1.0):
        monkeypatch.setattr("performer_string.locality.grid.SUMS", {"cpu": sums})
        out = grid_sum(Given(6), fq, fk, v, *locality.components(), lattice, (3, 3, 1), sums=total)
        found.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("map_name", ["favor+", "relu"])
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
    slow = naive.attend(naive.linear_weights(phi.queries(q), phi.keys(k), mask) * full, v)
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
    phi = build_feature_map("relu", head_dim=6, num_heads=2, num_features=16, order=3).double()
    mask = torch.rand(2, len(positions)) > 0.2

    def error():
        given = {"positions": positions, "num_prefix": prefix, "key_mask": mask}
        fast = linear_attention(*leaves, phi, locality=locality, **given)
        weights = naive.linear_weights(phi.queries(q), phi.keys(k), mask)
        slow = naive.attend(naive.focused_weights(weights, locality.matrix(positions, prefix), True), leaves[2])
        value, gradients = compare(fast, slow, [*leaves, *locality.parameters()])
        return max(value, *gradients)

    assert error() < WINDOW
    if (name, sigma, prefix) == ("gaussian", 1.3, 0):
        monkeypatch.setattr(Locality, "FAR", REACH)
        assert error() > 10 * WINDOW


def test_the_regimes_are_chosen_by_cost_and_heads_go_their_own_ways():
    locality, lattice = decay("gaussian", 2.0), Lattice((64, 64, 1), (1.0, 1.0, 1.0), 2)
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
        lattice = Lattice((n, n, 1), (1.0, 1.0, 1.0), 2)
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
    phi = build_feature_map("relu", head_dim=6, num_heads=2, num_features=8)
    exact = linear_attention(q, k, v, phi, locality=locality, positions=positions.clone().requires_grad_())
    for dtype, bound in ((torch.float32, 0.03), (torch.bfloat16, 0.05)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = linear_attention(*(x.to(dtype) for x in (q, k, v)), phi, locality=locality, positions=positions)
        assert out.dtype == dtype
        assert float(((out.float() - exact).norm() / exact.norm()).detach()) < bound


def test_off_a_grid_and_with_positions_that_learn_the_sum_is_exact():
    locality, (fq, fk, v) = decay("gaussian", 20.0), inputs(60)
    scattered = torch.rand(60, 2, dtype=torch.float64) * 8
    slow = naive.attenuated(fq, fk, v, definition(locality, scattered))
    torch.testing.assert_close(locality.numerator(fq, fk, v, scattered), slow)
    learned = grid_positions((6, 10), dtype=torch.float64).requires_grad_()
    out = locality.numerator(fq, fk, v, learned)
    torch.testing.assert_close(out, naive.attenuated(fq, fk, v, definition(locality, learned.detach())))
    assert torch.autograd.grad(out.sum(), learned)[0].abs().max() > 0


def test_positions_that_are_no_grid_are_told_of_once(caplog):
    """As (x, y) instead of (row, column): the same weights in quadratic time. A warning, which is seen by default."""
    logs.said.clear()
    locality, rows = build_locality("gaussian", num_heads=2), grid_positions((20, 15))
    assert locality.lattice(rows, 0) is not None
    assert not caplog.text
    assert locality.lattice(rows.flip(-1), 0) is None
    assert locality.lattice(rows.flip(-1), 0) is None
    assert caplog.text.count("300 positions are no row-major grid") == 1
    assert caplog.records[0].levelname == "WARNING"
