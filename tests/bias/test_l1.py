"""The exponential decay of the L1 distance: its formula, sides, options, and attention with it in linear time."""

from __future__ import annotations

import math

import pytest
import torch

from performer_string import (
    ViT,
    ViTConfig,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from performer_string.bias import RelativeBias
from performer_string.bias.linear_time import plan
from performer_string.bias.linear_time.recompute import CHUNK_FEATURES
from performer_string.ops import reference, reference_positions
from performer_string.ops.layout import Grid
from tests.helpers.cases import case
from tests.helpers.decays import assert_equal, qkv, use_regime

SIDES = ["both", "each", "quadrants", [[-1, 0], [0, 1]]]


def make(sides="both", heads=2, **options):
    """Return a decay in float64 whose sigmas all differ."""
    locality = build_locality("exponential-l1", num_heads=heads, sides=sides, **options).double()
    torch.nn.init.normal_(locality.raw_sigma, std=0.5)
    return locality


def test_matrix_is_the_formula():
    for sides in SIDES:
        for grid in ((7,), (3, 4), (2, 3, 2)):
            if isinstance(sides, list) and len(grid) != 2:
                continue
            with case(sides, grid):
                locality, positions = make(sides, grid=grid), grid_positions(grid, dtype=torch.float64) * 1.3
                with torch.no_grad():
                    matrix, sigma = locality.matrix(positions), locality.sigma().tolist()
                for h in range(2):
                    for i, p in enumerate(positions.tolist()):
                        for j, r in enumerate(positions.tolist()):
                            expected = 1.0
                            for c, (x, y) in enumerate(zip(p, r, strict=True)):
                                hidden = (y - x) * locality.signs[h][c] < 0
                                expected *= 0.0 if hidden else math.exp(-abs(x - y) / sigma[h][c][int(y > x)])
                            assert float(matrix[h, i, j]) == pytest.approx(expected)


@pytest.mark.parametrize("size", [2**21, 2**14], ids=["all", "head"])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_attention_in_linear_time_is_the_definition(sides, size, monkeypatch):
    """With masked keys, prefix tokens, both denominators, and every gradient, on a grid larger than a block.

    The features of all heads or of one head are in memory together.
    """
    monkeypatch.setitem(CHUNK_FEATURES, "cpu", size)
    use_regime(monkeypatch, "blocks")
    for normalised in (True, False):
        for kind in ("favor+", "arc-cosine"):
            with case(normalised, kind):
                locality = make(sides, normalised=normalised)
                grid = (18, 23)
                positions = torch.cat([torch.zeros(2, 2).double(), 0.7 + grid_positions(grid, dtype=torch.float64)])
                q, k, v = qkv(len(positions))
                phi = build_feature_map(kind, head_dim=6, num_heads=2, num_features=8).double()
                mask = torch.rand(2, len(positions)) > 0.3
                options = {"positions": positions, "num_prefix": 2, "key_mask": mask}
                fast = linear_attention(q, k, v, phi, locality=locality, **options)
                weights = reference.linear_weights(phi.queries(q), phi.keys(k), mask)
                decay = reference_positions.l1_decay(positions, locality.rates())
                decay = decay.index_fill(1, torch.arange(2), 1.0).index_fill(2, torch.arange(2), 1.0)
                slow = reference.attend(reference.modulated_weights(weights, decay, normalised), v)
                assert_equal(fast, slow, [q, k, v, *locality.parameters()])
                without = linear_attention(q, k, v, phi, key_mask=mask)
                assert (without - slow).norm() > 0.03 * slow.norm()  # the test would detect lambda left out


def test_keys_that_weigh_next_to_nothing_nearby(monkeypatch):
    """Where near keys have tiny features, distant ones decide: nothing is cut off, as a window would."""
    use_regime(monkeypatch, "blocks")
    locality = make(sigma=1.0)
    q, k, v = (x.detach() for x in qkv(600))
    positions = grid_positions((30, 20), dtype=torch.float64)
    k = torch.where((positions[:, 0] < 25)[:, None], k * 1e-7, k)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16, order=2).double()
    weights = reference.linear_weights(phi.queries(q), phi.keys(k))
    slow = reference.attend(reference.modulated_weights(weights, locality.matrix(positions), True), v)
    torch.testing.assert_close(linear_attention(q, k, v, phi, locality=locality, positions=positions), slow)


def test_types_of_16_bits_and_autocast(monkeypatch):
    use_regime(monkeypatch, "blocks")
    positions, locality = grid_positions((20, 20)), make("each").float()
    q, k, v = (x.detach().float() for x in qkv(400))
    phi = build_feature_map("favor+", head_dim=6, num_heads=2, num_features=8)
    exact = linear_attention(q, k, v, phi, locality=locality, positions=positions)
    for dtype, bound in ((torch.bfloat16, 0.03), (torch.float16, 0.005)):
        with case(dtype), torch.autocast("cpu", dtype=torch.bfloat16):
            inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
            out = linear_attention(*inputs, phi, locality=locality, positions=positions)
            assert out.dtype == dtype
            assert float(((out.float() - exact).norm() / exact.norm()).detach()) < bound
            out.float().square().sum().backward()
            assert all(x.grad.dtype == dtype and x.grad.isfinite().all() for x in inputs)
            assert locality.raw_sigma.grad.isfinite().all()


def test_softmax_has_the_same_bias():
    """A quadrant that holds no key that takes part but prefix tokens gives no NaN."""
    locality, positions = make("quadrants", heads=4), grid_positions((5, 4), dtype=torch.float64)
    q, k, v = qkv(20, heads=4)
    decay = reference_positions.l1_decay(positions, locality.rates())
    logs = torch.where(decay > 0, torch.where(decay > 0, decay, 1.0).log(), -torch.inf)
    logits = q @ k.mT * 6**-0.5 + logs
    out = softmax_attention(q, k, v, locality=locality, positions=positions)
    assert_equal(out, logits.softmax(-1) @ v, [q, k, v, *locality.parameters()])
    mask = torch.arange(20) == 19
    masked = softmax_attention(q, k, v, locality=locality, positions=positions, key_mask=mask.expand(2, -1))
    assert masked.isfinite().all()
    assert not masked[:, 0, 0].eq(0).all() or locality.signs[0] == [-1, -1]


def test_quadrants_are_covered_by_heads_in_a_row():
    locality = build_locality("exponential-l1", num_heads=6, sides="quadrants")
    assert locality.signs == [[-1, -1], [-1, 1], [1, -1], [1, 1], [-1, -1], [-1, 1]]
    seen = locality.matrix(grid_positions((3, 3)))[:, 4].detach() > 0  # by the token in the middle
    assert seen[0].view(3, 3).tolist() == [[True, True, False], [True, True, False], [False] * 3]
    assert seen[:4].any(0).all()
    assert build_locality("exponential-l1", num_heads=3, grid=(5,), sides="quadrants").signs == [[-1], [1], [-1]]


def test_sums_take_blocks_and_cost_is_linear():
    locality, costs = build_locality("exponential-l1", num_heads=1), []
    for n in (128, 256, 512):
        grid = Grid((n, n, 1), (1.0, 1.0, 1.0), 2)
        (chosen,) = plan.choose_plans(locality, grid, 64, 32)
        assert chosen.blocks is not None
        costs.append(plan.predicted_cost(chosen, grid, 64, 32, 0) / n**2)
    assert costs[2] < 1.05 * costs[1] < 1.1 * costs[0]
    few = Grid((18, 18, 1), (1.0, 1.0, 1.0), 2)
    assert plan.choose_plans(locality, few, 64, 32)[0].blocks is None  # all pairs cost less
    solid = build_locality("exponential-l1", num_heads=1, grid=(9, 9, 9))
    (chosen,) = plan.choose_plans(solid, Grid((9, 9, 9), (1.0, 1.0, 1.0), 3), 64, 32)
    assert (chosen.blocks, chosen.radius) == (None, (8, 8, 8))  # exact, in quadratic time


class CityBlock(RelativeBias):
    """A decay of one's own, by its values and its rates."""

    def __init__(self):
        super().__init__(2, True)
        self.slope = torch.nn.Parameter(torch.tensor([0.3, 1.1], dtype=torch.float64))

    def of_offsets(self, offsets):
        return torch.exp(-self.slope.view(-1, *[1] * (offsets.ndim - 1)) * offsets.abs().sum(-1))

    def rates(self):
        return self.slope[:, None, None].expand(-1, 2, 2)


def test_subclass_needs_its_rates_alone(monkeypatch):
    use_regime(monkeypatch, "blocks")
    locality, positions = CityBlock(), grid_positions((24, 18), dtype=torch.float64)
    q, k, v = qkv(432)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16).double()
    out = linear_attention(q, k, v, phi, locality=locality, positions=positions)
    weights = reference.linear_weights(phi.queries(q), phi.keys(k))
    slow = reference.attend(reference.modulated_weights(weights, locality.matrix(positions), True), v)
    assert_equal(out, slow, [q, k, v, locality.slope])


def test_parameters_start_as_asked_and_stay_in_bounds():
    locality = build_locality("exponential-l1", num_heads=3, sigma=2.0)
    torch.testing.assert_close(locality.sigma(), torch.full((3, 2, 2), 2.0))
    assert set(locality.learned()) == {"sigma_0", "sigma_1"}
    torch.nn.init.constant_(locality.raw_sigma, 50.0)
    torch.testing.assert_close(locality.learned()["sigma_1"], torch.full((3,), 64.0))
    each = build_locality("exponential-l1", num_heads=3, sides="each")
    assert set(each.learned()) == {f"sigma_{c}_{side}" for c in (0, 1) for side in ("lower", "higher")}


def test_bad_options_and_positions():
    for options, message in (
        ({"sigma": 0.0}, "0 < 0.25 < sigma < 64.0, not 0.0"),
        ({"sides": "left"}, "sides must be both, each, quadrants, or a list of 2 heads .* not left"),
        ({"sides": [[1, 1]]}, "a list of 2 heads with -1, 0 or 1 for each of 2 axes"),
        ({"sides": [[1, 2], [0, 0]]}, "a list of 2 heads with -1, 0 or 1"),
        ({"sides": [[1], [1]]}, "for each of 2 axes"),
        ({"amplitude": 0.5}, "no option 'amplitude'"),
    ):
        with pytest.raises(ValueError, match=message):
            build_locality("exponential-l1", num_heads=2, **options)
    with pytest.raises(ValueError, match=r"have 2 coordinates, not 1: build the decay with a grid of as many axes"):
        build_locality("exponential-l1", num_heads=2).matrix(grid_positions((5,)))
    locality, q = build_locality("exponential-l1", num_heads=2), torch.randn(1, 2, 400, 6)
    torch.nn.init.constant_(locality.raw_sigma, torch.nan)
    phi = build_feature_map("arc-cosine", head_dim=6, num_heads=2, num_features=16)
    with pytest.raises(ValueError, match="its rates must be numbers, and some are NaN"):
        linear_attention(q, q, q, phi, locality=locality, positions=grid_positions((20, 20)))


def test_model_learns_its_widths(monkeypatch):
    """A ViT with directed heads, by blocks: a gradient for every sigma."""
    use_regime(monkeypatch, "blocks")
    options = {"sides": "quadrants", "sigma": 3.0}
    config = ViTConfig(72, 4, variant="micro", locality="exponential-l1", locality_options=options, registers=1)
    model = ViT(config)
    model(torch.randn(2, 3, 72, 80)).square().sum().backward()
    for locality in model.localities():
        assert locality.raw_sigma.grad.abs().min() > 0
