"""Windows of whole tiles, which GPUs take, against the definition and against narrow windows."""

from __future__ import annotations

import pytest
import torch

from performer_string import build_feature_map, build_locality, grid_positions, linear_attention
from performer_string.bias.linear_time import SumInputs, recompute, sums
from performer_string.bias.linear_time.narrow_windows import NarrowWindows
from performer_string.bias.linear_time.recompute import StoredFeatures
from performer_string.bias.linear_time.whole_tiles import WholeTiles, make_tiles
from performer_string.bias.linear_time.window import window_sum
from performer_string.ops import reference
from performer_string.ops.layout import Grid
from tests.helpers.decays import assert_equal, decay, definition, inputs

# Grids of one and two axes, whole tiles and not, smaller than a tile, and a step that is not one.
GRIDS = [
    ((61, 9), (1.0, 1.0), (8, 8, 0)),
    ((16, 24), (1.0, 0.5), (8, 16, 0)),
    ((40, 3), (1.0, 1.0), (8, 2, 0)),
    ((300,), (1.0,), (8, 0, 0)),
    ((5, 7), (1.0, 1.0), (4, 6, 0)),
]


def three(values, fill):
    return (*values, fill, fill)[:3]


def whole_tiles(inputs, radius):
    """Return what `choose_windows` returns on a GPU."""
    return make_tiles(inputs.grid, radius, inputs.products)


@pytest.mark.parametrize(("shape", "steps", "radius"), GRIDS, ids=str)
@pytest.mark.parametrize("rows", ["one chunk", "chunks of a row of tiles"])
def test_sum_is_the_definition_with_every_gradient(shape, steps, radius, rows, monkeypatch):
    """A decay that has ended within the radius."""
    if rows != "one chunk":
        monkeypatch.setitem(recompute.CHUNK_FEATURES, "cpu", 1)
    grid = Grid(three(shape, 1), three(steps, 1.0), len(shape))
    positions = grid_positions(shape, dtype=torch.float64) * torch.tensor(steps, dtype=torch.float64)
    locality, tokens = decay("gaussian", 1.0), grid.tokens
    fq, fk, v = inputs(tokens, 3, 2, batch=2)
    slow = reference.attend_attenuated(fq, fk, v, definition(locality, positions))
    key_sums = None if rows == "one chunk" else fk.sum(2)[..., None]
    tiles = make_tiles(grid, radius)
    fast = window_sum(SumInputs(StoredFeatures(3), fq, fk, v, grid, key_sums=key_sums), locality.of_offsets, tiles)
    sums_of_keys = torch.einsum("bhnm,bhkm->bhn", fq, fk)[..., None]  # the last column
    assert_equal(fast, torch.cat([slow, sums_of_keys], dim=-1), [fq, fk, v, *locality.parameters()])


def test_neighbours_reach_at_least_the_radius():
    grid, features = Grid((200, 1, 1), (1.0, 1.0, 1.0), 1), torch.ones(1, 1, 200, 1, dtype=torch.float64)
    v = torch.eye(200, dtype=torch.float64)[None, None]
    ones = lambda offsets: torch.ones(1, *offsets.shape[:-1], dtype=torch.float64)  # noqa: E731
    tiles = make_tiles(grid, (3, 0, 0))
    weights = window_sum(SumInputs(StoredFeatures(1), features, features, v, grid), ones, tiles)[0, 0, :, :-1]
    tile = torch.arange(200) // 64
    assert torch.equal(weights, ((tile[:, None] - tile).abs() <= 1).double())


def test_a_cpu_takes_narrow_windows_and_other_devices_whole_tiles():
    for device, kind in (("cpu", NarrowWindows), ("meta", WholeTiles)):
        x = torch.empty(1, 1, 81, 1, device=device)
        grid = Grid((9, 9, 1), (1.0, 1.0, 1.0), 2)
        assert isinstance(sums.choose_windows(SumInputs(StoredFeatures(1), x, x, x, grid), (2, 2, 0)), kind)


def test_grids_of_three_axes_take_narrow_windows():
    assert make_tiles(Grid((4, 9, 9), (1.0, 1.0, 1.0), 3), (2, 2, 2)) is None


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["favor+", "arc-cosine"])
def test_attention_is_that_of_narrow_windows_with_every_gradient(name, normalised, monkeypatch):
    """With a mask, prefix tokens and a bias of the keys, at several chunks."""
    monkeypatch.setitem(recompute.CHUNK_FEATURES, "cpu", 2**12)
    height, width, prefix = 33, 19, 2
    tokens = height * width + prefix
    positions = grid_positions((height, width), dtype=torch.float64)
    phi = build_feature_map(name, head_dim=4, num_heads=2, num_features=8).double()
    locality = build_locality("gaussian", num_heads=2, sigma=2.0, normalised=normalised).double()
    leaves = [torch.randn(2, 2, tokens, width, dtype=torch.float64).requires_grad_() for width in (4, 4, 3)]
    mask = torch.rand(2, tokens) < 0.8
    mask[:, :prefix] = True
    bias = torch.randn(2, 2, tokens, dtype=torch.float64).requires_grad_()
    upstream, results = torch.randn(2, 2, tokens, 3, dtype=torch.float64), []
    for choose in (whole_tiles, sums.choose_windows):
        monkeypatch.setattr(sums, "choose_windows", choose)
        places = torch.cat([positions.new_zeros(prefix, 2), positions])
        out = linear_attention(
            *leaves, phi, locality=locality, positions=places, num_prefix=prefix, key_mask=mask, key_bias=bias
        )
        results.append([out, *torch.autograd.grad(out, [*leaves, bias, *locality.parameters()], upstream)])
    for fast, slow in zip(*results, strict=True):
        assert (fast - slow).norm() < 2e-3 * slow.norm()


def test_products_of_bfloat16_have_sums_in_float32(monkeypatch):
    """Where features are computed again, products have the type of the values."""
    chosen = []
    monkeypatch.setattr(sums, "choose_windows", lambda *given: chosen.append(whole_tiles(*given)) or chosen[-1])
    monkeypatch.setitem(recompute.CHUNK_FEATURES, "cpu", 2**12)
    phi = build_feature_map("favor+", head_dim=16, num_heads=2, num_features=32)
    locality, positions = build_locality("gaussian", num_heads=2, sigma=2.0), grid_positions((33, 19))
    leaves = [torch.randn(1, 2, 627, 16).requires_grad_() for _ in range(3)]
    outs = []
    for dtype in (torch.bfloat16, torch.float32):
        out = linear_attention(*(x.to(dtype) for x in leaves), phi, locality=locality, positions=positions)
        assert out.dtype == dtype
        (chunk,) = chosen[0].chunks(627)
        assert chosen.pop().tiles(torch.ones(1, 1, 627, 1), chunk.query_pads).dtype == dtype
        outs.append([out, *torch.autograd.grad(out, [*leaves, *locality.parameters()], torch.ones_like(out))])
    for rough, exact in zip(*outs, strict=True):
        assert (rough - exact).norm() < 2e-2 * exact.norm()
