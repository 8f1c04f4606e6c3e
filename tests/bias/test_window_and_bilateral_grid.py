"""The window and the bilateral grid by themselves, against the definition: tiles, bands, nodes, blocks."""

from __future__ import annotations

import pytest
import torch

from performer_string import grid_positions
from performer_string.bias.linear_time.bilateral_grid import grid_sum
from performer_string.bias.linear_time.recompute import Given
from performer_string.bias.linear_time.tiles import bands, slabs
from performer_string.bias.linear_time.window import window_sum
from performer_string.ops import reference
from performer_string.ops.layout import Grid, find_grid
from tests.helpers.decays import GRADIENT, GRID, assert_equal, compare, decay, definition, inputs


def test_a_window_over_everything_is_exact_with_every_gradient():
    """At odd sizes, where neither tiles nor bands divide the grid; each tile sees its own part of the table."""
    lattice = Grid((11, 9, 10), (1.0, 0.5, 2.0), 3)
    positions = grid_positions((11, 9, 10), dtype=torch.float64) * torch.tensor([1.0, 0.5, 2.0])
    locality = decay("gaussian", 3.0)
    fq, fk, v = inputs(990, 3, 2, batch=2)
    slow = reference.attenuated(fq, fk, v, definition(locality, positions))
    fast = window_sum(Given(3), fq, fk, v, locality.of_offsets, lattice, (10, 8, 9))[..., :-1]
    assert_equal(fast, slow, [fq, fk, v, *locality.parameters()])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_tiles_in_a_row_share_a_product(batch):
    """Six tiles away from the edges, in batches over tiles or over heads; the decay has ended within the window."""
    lattice = Grid((61, 9, 1), (1.0, 1.0, 1.0), 2)
    locality, positions = decay("gaussian", 1.0), grid_positions((61, 9), dtype=torch.float64)
    fq, fk, v = inputs(549, 3, 2, batch=batch)
    slow = reference.attenuated(fq, fk, v, definition(locality, positions))
    fast = window_sum(Given(3), fq, fk, v, locality.of_offsets, lattice, (8, 8, 0))[..., :-1]
    assert_equal(fast, slow, [fq, fk, v, *locality.parameters()])


def test_windows_that_are_apart_share_no_keys():
    """Gradients are added to them at the same time."""
    lattice = Grid((61, 9, 1), (1.0, 1.0, 1.0), 2)
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
    positions, lattice = grid_positions(grid, dtype=torch.float64), Grid((24, 31, 1), (1.0, 1.0, 1.0), 2)
    amplitudes, widths = torch.ones(2, 1).double(), torch.full((2, 1), 4.0).double()
    fq, fk, v = (x.detach() for x in inputs(24 * 31))
    v = torch.randn_like(v)  # a signed sum, where errors do not average out
    slow = reference.attenuated(fq, fk, v, reference.gaussians(positions, amplitudes, widths))
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
    lattice = find_grid(positions)
    fast = grid_sum(Given(3), fq, fk, v, *locality.components(), lattice, (6, 1, 1))[..., :-1]
    value, gradients = compare(
        fast, reference.attenuated(fq, fk, v, definition(locality, positions)), [fq, fk, v, *locality.parameters()]
    )
    assert value < GRID
    assert max(gradients) < GRADIENT


@pytest.mark.parametrize("given", [False, True], ids=["own-sums", "given-sums"])
def test_blocks_of_values_change_nothing(monkeypatch, given):
    positions = grid_positions((12, 17), dtype=torch.float64)
    locality, (fq, fk, v) = decay("gaussian", 6.0, 3), inputs(204, 6, 40, heads=3)
    total = torch.randn(1, 3, 6, 1, dtype=torch.float64, requires_grad=True) if given else None
    lattice, leaves = find_grid(positions), [fq, fk, v, *locality.parameters(), *([total] if given else [])]
    weight, found = torch.randn(1, 3, 204, 41, dtype=torch.float64), []
    for sums in (1e9, 1.0):
        monkeypatch.setattr("performer_string.bias.linear_time.bilateral_grid.SUMS", {"cpu": sums})
        out = grid_sum(Given(6), fq, fk, v, *locality.components(), lattice, (3, 3, 1), sums=total)
        found.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
