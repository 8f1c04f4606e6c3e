"""Grids cut into cells and tiles, for sums in linear time."""

from __future__ import annotations

import pytest
import torch

from performer_string.bias.decays import node_spacing
from performer_string.bias.linear_time.bilateral_grid import cell_shape
from performer_string.bias.linear_time.inputs import from_cells, to_cells
from performer_string.bias.linear_time.tiles import count_products, radius_in_tokens
from performer_string.ops.layout import Grid


def test_cells_there_and_back():
    x = torch.randn(3, 5 * 7 * 4, 2)
    cells = to_cells(x, (5, 7, 4), (2, 3, 4))
    assert cells.shape == (3 * 3 * 1, 3, 2 * 3 * 4, 2)
    assert torch.equal(from_cells(cells, (5, 7, 4), (2, 3, 4)), x)


def test_radius_cells_and_products_of_a_grid():
    grid = Grid((8, 20, 1), (1.0, 0.5, 1.0), 2)
    assert radius_in_tokens(3.2, grid) == (4, 7, 0)
    assert radius_in_tokens(99.0, grid) == (7, 19, 0)
    assert cell_shape(1.5, grid) == (1, 3, 1)
    assert count_products(grid, (7, 19, 0)) == 160**2


def test_nodes_are_closer_in_three_dimensions_for_the_same_error():
    """The error grows as the square of the spacing times the root of the dimension."""
    assert node_spacing(4.0, 1) == node_spacing(4.0, 2) == 2.0
    assert node_spacing(4.0, 3) ** 2 * 3**0.5 == pytest.approx(node_spacing(4.0, 2) ** 2 * 2**0.5)
