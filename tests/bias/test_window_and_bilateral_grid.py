"""The window and the bilateral grid by themselves, against the definition: tiles, bands, nodes, blocks."""

from __future__ import annotations

import torch

from performer_string import grid_positions
from performer_string.bias.linear_time import SumInputs
from performer_string.bias.linear_time.bilateral_grid import grid_sum
from performer_string.bias.linear_time.narrow_windows import NarrowWindows
from performer_string.bias.linear_time.recompute import StoredFeatures
from performer_string.bias.linear_time.tiles import radius_in_tokens, window_chunks
from performer_string.bias.linear_time.window import window_sum
from performer_string.ops import reference, reference_positions
from performer_string.ops.layout import Grid, find_grid
from tests.helpers.cases import case
from tests.helpers.decays import GRADIENT, GRID, assert_equal, compare, decay, definition, inputs


def test_window_over_everything_is_exact_with_every_gradient():
    """At odd sizes, where neither tiles nor bands divide the grid; each tile sees its own part of the table."""
    grid = Grid((11, 9, 10), (1.0, 0.5, 2.0), 3)
    positions = grid_positions((11, 9, 10), dtype=torch.float64) * torch.tensor([1.0, 0.5, 2.0])
    locality = decay("gaussian", 3.0)
    fq, fk, v = inputs(990, 3, 2, batch=2)
    slow = reference.attend_attenuated(fq, fk, v, definition(locality, positions))
    fast = window_sum(
        SumInputs(StoredFeatures(3), fq, fk, v, grid), locality.of_offsets, NarrowWindows(grid, (10, 8, 9))
    )
    sums_of_keys = torch.einsum("bhnm,bhkm->bhn", fq, fk)[..., None]  # the last column
    assert_equal(fast, torch.cat([slow, sums_of_keys], dim=-1), [fq, fk, v, *locality.parameters()])


def test_tiles_in_a_row_share_a_product():
    """Six tiles away from the edges, in batches over tiles or over heads; the decay has ended within the window."""
    grid = Grid((61, 9, 1), (1.0, 1.0, 1.0), 2)
    locality, positions = decay("gaussian", 1.0), grid_positions((61, 9), dtype=torch.float64)
    for batch in (1, 2, 5):
        with case(batch):
            fq, fk, v = inputs(549, 3, 2, batch=batch)
            slow = reference.attend_attenuated(fq, fk, v, definition(locality, positions))
            windows = NarrowWindows(grid, (8, 8, 0))
            fast = window_sum(SumInputs(StoredFeatures(3), fq, fk, v, grid), locality.of_offsets, windows)[..., :-1]
            assert_equal(fast, slow, [fq, fk, v, *locality.parameters()])


def test_window_has_exactly_its_radius():
    """Queries see the keys within the radius of their tile, and no others: those of a line, all with lambda 1."""
    grid, features = Grid((200, 1, 1), (1.0, 1.0, 1.0), 1), torch.ones(1, 1, 200, 1, dtype=torch.float64)
    v = torch.eye(200, dtype=torch.float64)[None, None]
    ones = lambda offsets: torch.ones(1, *offsets.shape[:-1], dtype=torch.float64)  # noqa: E731
    windows = NarrowWindows(grid, (3, 0, 0))
    weights = window_sum(SumInputs(StoredFeatures(1), features, features, v, grid), ones, windows)[0, 0, :, :-1]
    tokens = torch.arange(200)
    tile = tokens // 64
    low, high = (64 * tile - 3)[:, None], (64 * (tile + 1) + 3)[:, None]
    assert torch.equal(weights, ((tokens >= low) & (tokens < high)).double())
    assert radius_in_tokens(2.0, Grid((9, 9, 1), (1.0, 0.75, 1.0), 2)) == (2, 3, 0)


def test_windows_a_disjoint_step_apart_share_no_keys():
    """Gradients are added to them at the same time."""
    grid = Grid((61, 9, 1), (1.0, 1.0, 1.0), 2)
    (chunk,) = window_chunks(grid, (9, 8, 0), grid.tokens)
    runs = [run for band in chunk.bands for run in band.runs]
    assert max(run.count for run in runs) >= 4
    for run in runs:
        windows = run.windows(torch.arange(61.0).view(1, 1, 61, 1, 1))[0, 0, :, :, 0]  # rows of the grid
        for one, other in zip(windows, windows[run.disjoint_step :], strict=False):
            assert one[-1] < other[0]


def test_nodes_at_every_token_are_exact_and_coarser_ones_worse():
    """The error falls with the spacing; nodes too far apart break the bound, which is why there is one."""
    errors = []
    positions, grid = grid_positions((24, 31), dtype=torch.float64), Grid((24, 31, 1), (1.0, 1.0, 1.0), 2)
    amplitudes, widths = torch.ones(2, 1).double(), torch.full((2, 1), 4.0).double()
    fq, fk, v = (x.detach() for x in inputs(24 * 31))
    v = torch.randn_like(v)  # a signed sum, where errors do not average out
    slow = reference.attend_attenuated(fq, fk, v, reference_positions.gaussian_decay(positions, amplitudes, widths))
    for cell in (1, 2, 4, 6):
        fast = grid_sum(SumInputs(StoredFeatures(6), fq, fk, v, grid), amplitudes, widths, (cell, cell, 1))[..., :-1]
        errors.append(float((fast - slow).norm() / slow.norm()))
    assert errors[0] < 2e-3  # what the blur's reach leaves out
    assert errors == sorted(errors)
    assert errors[1] < GRID < errors[2]


def test_long_line_is_blurred_in_blocks():
    positions = grid_positions((1500,), dtype=torch.float64)
    locality = decay("gaussian", 12.0)
    fq, fk, v = inputs(1500, 3, 2)
    grid = find_grid(positions)
    fast = grid_sum(SumInputs(StoredFeatures(3), fq, fk, v, grid), *locality.components(), (6, 1, 1))[..., :-1]
    value, gradients = compare(
        fast,
        reference.attend_attenuated(fq, fk, v, definition(locality, positions)),
        [fq, fk, v, *locality.parameters()],
    )
    assert value < GRID
    assert max(gradients) < GRADIENT


def test_blocks_of_values_change_nothing(monkeypatch):
    positions = grid_positions((12, 17), dtype=torch.float64)
    locality, (fq, fk, v) = decay("gaussian", 6.0, 3), inputs(204, 6, 40, heads=3)
    sums, weight = torch.randn(1, 3, 6, 1, dtype=torch.float64), torch.randn(1, 3, 204, 41, dtype=torch.float64)
    for key_sums in (None, sums.requires_grad_()):
        leaves = [fq, fk, v, *locality.parameters(), *([] if key_sums is None else [key_sums])]
        results = []
        for room in (1e9, 1.0):
            monkeypatch.setattr("performer_string.bias.linear_time.bilateral_grid.NODE_SUMS", {"cpu": room})
            inputs_ = SumInputs(StoredFeatures(6), fq, fk, v, find_grid(positions), key_sums=key_sums)
            out = grid_sum(inputs_, *locality.components(), (3, 3, 1))
            results.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)
