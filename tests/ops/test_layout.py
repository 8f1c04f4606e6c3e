"""Regular grids found in positions, and the layout of tokens."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
import torch

from performer_string import build_locality, grid_positions
from performer_string.ops.layout import Grid, TokenLayout, find_grid, make_grid
from performer_string.position.grid import PositionMode, grid_steps
from tests.helpers.other_device import other_device


def test_grids_of_any_spacing_and_origin_are_found():
    shapes = [(1,), (7,), (1, 5), (5, 1), (4, 6), (2, 3, 4), (3, 1, 2), (1, 1, 1)]
    for shape, centred in product(shapes, (False, True)):
        steps = (0.3, 2.5, 1.0)[: len(shape)]
        grid = find_grid(grid_positions(shape, centred=centred) * torch.tensor(steps) + 11.3)
        assert (grid.shape, grid.dim) == ((*shape, 1, 1)[:3], len(shape))
        for n, expected, step in zip(shape, steps, grid.steps, strict=False):
            assert n == 1 or step == pytest.approx(expected, rel=1e-4)
    assert find_grid(grid_positions((3, 4)).long()).shape == (3, 4, 1)


def test_other_positions_are_no_grid():
    positions = grid_positions((4, 6))
    bent, uneven = positions.clone(), positions.clone()
    bent[7, 1] += 0.01
    uneven[:, 0] = uneven[:, 0].square()
    column_major = grid_positions((6, 4)).flip(-1)
    none = [bent, uneven, column_major, positions.flip(0), positions[:-1], torch.randn(6, 2), torch.zeros(6, 4)]
    none += [positions[torch.randperm(24)], torch.zeros(5, 2), torch.full((4, 1), torch.nan), torch.zeros(0, 2)]
    assert [find_grid(x) for x in none] == [None] * len(none)


def test_a_long_axis_is_found_in_spite_of_its_rounding():
    for tokens in (8661, 30001):
        positions = grid_positions((tokens,), mode="interpolate", train_grid=(196,))
        assert find_grid(positions).shape == (tokens, 1, 1)
        positions[tokens // 2] += 0.1 * (positions[1] - positions[0])
        assert find_grid(positions) is None


@pytest.mark.parametrize("mode", get_args(PositionMode))
def test_a_grid_made_is_the_grid_found(mode):
    for shape in ((5, 4), (1, 3), (7,), (1,), (2, 3, 5), (12, 1, 1)):
        train_grid = tuple(range(3, 3 + len(shape))) if mode == "interpolate" else None
        made = make_grid(shape, grid_steps(shape, mode, train_grid))
        positions = grid_positions(shape, mode=mode, train_grid=train_grid, dtype=torch.float64)
        grid = find_grid(positions)
        assert (made.shape, made.dim, made.tokens) == (grid.shape, grid.dim, len(positions))
        assert made.steps == pytest.approx(grid.steps, rel=1e-12)


def test_a_grid_of_four_axes_is_none():
    assert make_grid((2, 2, 2, 2), (1.0,) * 4) is None


def test_grids_of_a_layout_are_those_behind_the_prefix():
    fine, coarse = grid_positions((2, 3)), 2 * grid_positions((2, 3))
    positions = torch.cat([torch.zeros(2, 1, 2), torch.stack([fine, coarse])], dim=1)
    grids = [Grid((2, 3, 1), (s, s, 1.0), 2) for s in (1.0, 2.0)]
    assert TokenLayout(positions[0], num_prefix=1).grids() == grids[:1]
    assert TokenLayout(positions, num_prefix=1).grids() == grids
    assert TokenLayout(positions, grids[1], num_prefix=1).grids() == grids[1:]  # known in advance


def test_centred_positions_leave_the_prefix_at_zero():
    positions = torch.cat([torch.zeros(1, 2), grid_positions((2, 3))])
    centre = torch.tensor([[[0.5, 1.0]], [[0.0, 2.0]]])
    assert TokenLayout(positions, num_prefix=1).centred_positions() is positions
    centred = TokenLayout(positions, num_prefix=1, centre=centre).centred_positions()
    assert centred.shape == (2, 7, 2)
    assert not centred[:, 0].any()
    assert torch.equal(centred[:, 1:], positions[1:] - centre)


def test_integer_positions_on_a_device_without_float64():
    positions, decay = torch.cartesian_prod(torch.arange(3), torch.arange(4)), build_locality("gaussian", num_heads=2)
    with other_device() as device:
        assert find_grid(positions.to(device)) == make_grid((3, 4), (1.0, 1.0))
        columns = decay.to(device).log_columns(positions.to(device))
        a, b = (x.to("cpu") for x in columns)
    torch.testing.assert_close((a @ b.mT).exp(), decay.to("cpu").matrix(positions))
