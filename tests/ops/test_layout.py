"""Regular grids found in positions, and cut into cells and tiles."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from performer_string import grid_positions
from performer_string.bias.decays import node_spacing
from performer_string.bias.linear_time.bilateral_grid import cells_of
from performer_string.bias.linear_time.nodes import from_cells, to_cells
from performer_string.bias.linear_time.tiles import products, radius_in_tokens
from performer_string.ops.layout import Grid, find_grid, make_grid
from performer_string.position.grid import PositionMode, grid_steps


@pytest.mark.parametrize("grid", [(1,), (7,), (1, 5), (5, 1), (4, 6), (2, 3, 4), (3, 1, 2), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("centred", [False, True])
def test_a_lattice_is_found_whatever_its_spacing_and_origin(grid, centred):
    steps = (0.3, 2.5, 1.0)[: len(grid)]
    positions = grid_positions(grid, centred=centred) * torch.tensor(steps) + 11.3
    lattice = find_grid(positions)
    assert lattice.shape == (*grid, 1, 1)[:3]
    for n, step, found in zip(grid, steps, lattice.steps, strict=False):
        assert n == 1 or found == pytest.approx(step, rel=1e-4)


def test_what_is_no_lattice():
    positions = grid_positions((4, 6))
    bent, holed = positions.clone(), positions.clone()
    bent[7, 1] += 0.01
    holed[:, 0] = holed[:, 0].square()
    column_major = grid_positions((6, 4)).flip(-1)
    none = [bent, holed, column_major, positions.flip(0), positions[:-1], torch.randn(6, 2), torch.zeros(6, 4)]
    none += [positions[torch.randperm(24)], torch.zeros(5, 2), torch.full((4, 1), torch.nan), torch.zeros(0, 2)]
    assert [find_grid(x) for x in none] == [None] * len(none)


@pytest.mark.parametrize("mode", ["interpolate", "unit"])
@pytest.mark.parametrize("cells", [8661, 30001])
def test_a_long_axis_is_found_in_spite_of_its_rounding(cells, mode):
    positions = grid_positions((cells,), mode=mode, train_grid=(196,) if mode == "interpolate" else None)
    assert find_grid(positions).shape == (cells, 1, 1)
    apart = positions.clone()
    apart[cells // 2] += 0.1 * (positions[1] - positions[0])
    assert find_grid(apart) is None


def test_whole_numbers_are_positions():
    assert find_grid(grid_positions((3, 4)).long()).shape == (3, 4, 1)


def test_cells_there_and_back():
    x = torch.randn(3, 5 * 7 * 4, 2)
    cells = to_cells(x, (5, 7, 4), (2, 3, 4))
    assert cells.shape == (3 * 3 * 1, 3, 2 * 3 * 4, 2)
    assert torch.equal(from_cells(cells, (5, 7, 4), (2, 3, 4)), x)


def test_radius_cells_and_products_of_a_lattice():
    lattice = Grid((8, 20, 1), (1.0, 0.5, 1.0), 2)
    assert radius_in_tokens(3.2, lattice) == (4, 7, 0)
    assert radius_in_tokens(99.0, lattice) == (7, 19, 0)
    assert cells_of(1.5, lattice) == (1, 3, 1)
    assert products(lattice, (7, 19, 0)) == 160**2


def test_nodes_are_closer_in_three_dimensions_for_the_same_error():
    """It grows as the square of the spacing times the root of the dimension."""
    assert node_spacing(4.0, 1) == node_spacing(4.0, 2) == 2.0
    assert node_spacing(4.0, 3) ** 2 * 3**0.5 == pytest.approx(node_spacing(4.0, 2) ** 2 * 2**0.5)


@pytest.mark.parametrize("mode", get_args(PositionMode))
@pytest.mark.parametrize("grid", [(5, 4), (1, 3), (7,), (1,), (2, 3, 5), (12, 1, 1)])
def test_a_grid_that_is_known_is_the_one_found(grid, mode):
    train_grid = tuple(range(3, 3 + len(grid))) if mode == "interpolate" else None
    known = make_grid(grid, grid_steps(grid, mode, train_grid))
    found = find_grid(grid_positions(grid, mode=mode, train_grid=train_grid, dtype=torch.float64))
    assert (known.shape, known.dim) == (found.shape, found.dim)
    assert known.steps == pytest.approx(found.steps, rel=1e-12)


def test_a_grid_of_four_axes_is_none():
    assert make_grid((2, 2, 2, 2), (1.0,) * 4) is None
