"""Positions of the cells of grids."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from performer_string import ViTConfig, grid_positions
from performer_string.position.grid import mean_position, with_prefix


def test_order_is_row_major_and_one_unit_a_patch():
    assert grid_positions((2, 3)).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_any_dimension():
    for grid in ((5,), (2, 3), (2, 3, 4)):
        assert grid_positions(grid).shape == (math.prod(grid), len(grid))


def test_a_larger_grid_extends_a_smaller_one():
    small, large = grid_positions((3, 4)), grid_positions((6, 9))
    assert_close(large.reshape(6, 9, 2)[:3, :4].reshape(-1, 2), small)


def test_interpolation_aligns_the_borders_of_cells():
    squeezed = grid_positions((4, 6), mode="interpolate", train_grid=(2, 3))
    means = squeezed.reshape(2, 2, 3, 2, 2).mean(dim=(1, 3)).reshape(-1, 2)
    assert_close(means, grid_positions((2, 3)))
    assert_close(grid_positions((2, 3), mode="interpolate", train_grid=(2, 3)), grid_positions((2, 3)))


def test_the_removed_mode_of_old_checkpoints_is_a_clear_error():
    message = r'position mode "unit" was removed: .* loads in the version that wrote it'
    with pytest.raises(ValueError, match=message):
        grid_positions((3, 3), mode="unit")
    with pytest.raises(ValueError, match=message):
        ViTConfig.of_checkpoint({"width": 16, "depth": 1, "num_heads": 2, "positions": "unit"})


def test_centred_positions_have_mean_zero():
    assert grid_positions((5, 8), centred=True).mean(0).abs().max() < 1e-6


def test_mean_position_counts_the_tokens_that_take_part():
    positions, mask = grid_positions((2, 3)), torch.tensor([[True] * 6, [True, False, True, False, False, False]])
    assert_close(mean_position(positions), torch.tensor([[0.5, 1.0]]))
    assert_close(mean_position(positions, mask), torch.tensor([[[0.5, 1.0]], [[0.0, 1.0]]]))


def test_prefix_tokens_are_at_the_origin():
    positions = with_prefix(grid_positions((2, 2), centred=True), 3)
    assert positions.shape == (7, 2)
    assert positions[:3].abs().max() == 0


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ((), {}, "positive sizes"),
        ((3, 0), {}, r"not \(3, 0\)"),
        ((3, 3), {"mode": "stretch"}, "unknown position mode 'stretch'. Known: extrapolate, interpolate"),
        ((3, 3), {"dtype": torch.int64, "centred": True}, "torch.int64 rounds positions"),
        ((3, 3), {"mode": "interpolate"}, "needs train_grid"),
        ((3, 3), {"train_grid": (2, 2)}, "needs train_grid, and no other does"),
        ((3, 3), {"mode": "interpolate", "train_grid": (2,)}, "differ in dimension"),
        ((3, 3), {"mode": "interpolate", "train_grid": (0, 2)}, r"train_grid must hold .* not \(0, 2\)"),
    ],
    ids=str,
)
def test_bad_grids(grid, options, message):
    with pytest.raises(ValueError, match=message):
        grid_positions(grid, **options)
