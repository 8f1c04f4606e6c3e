import pytest
import torch

from performer_string import grid_positions
from performer_string.position.grid import with_prefix


def test_row_major_and_one_unit_a_patch():
    assert grid_positions((2, 3)).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize("grid", [(5,), (2, 3), (2, 3, 4)])
def test_any_dimension(grid):
    assert grid_positions(grid).shape == (torch.tensor(grid).prod(), len(grid))


def test_a_larger_grid_extends_a_smaller_one():
    small, large = grid_positions((3, 4)), grid_positions((6, 9))
    torch.testing.assert_close(large.reshape(6, 9, 2)[:3, :4].reshape(-1, 2), small)


def test_interpolation_aligns_the_cells():
    squeezed = grid_positions((4, 6), mode="interpolate", train_grid=(2, 3))
    blocks = squeezed.reshape(2, 2, 3, 2, 2).mean(dim=(1, 3)).reshape(-1, 2)
    torch.testing.assert_close(blocks, grid_positions((2, 3)))
    same = grid_positions((2, 3), mode="interpolate", train_grid=(2, 3))
    torch.testing.assert_close(same, grid_positions((2, 3)))


def test_unit_mode_ends_at_one():
    assert grid_positions((5, 3), mode="unit").amax(0).tolist() == [1, 1]
    assert grid_positions((1, 1), mode="unit").tolist() == [[0, 0]]


def test_centred_positions_have_mean_zero():
    assert grid_positions((5, 8), centred=True).mean(0).abs().max() < 1e-6


def test_prefix_tokens_are_at_the_origin():
    placed = with_prefix(grid_positions((2, 2), centred=True), 3)
    assert placed.shape == (7, 2)
    assert placed[:3].abs().max() == 0


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ((), {}, "positive sizes"),
        ((3, 0), {}, r"not \(3, 0\)"),
        ((3, 3), {"mode": "stretch"}, "extrapolate, interpolate, unit, not 'stretch'"),
        ((3, 3), {"mode": "interpolate"}, "needs train_grid"),
        ((3, 3), {"train_grid": (2, 2)}, "needs train_grid, and no other does"),
        ((3, 3), {"mode": "interpolate", "train_grid": (2,)}, "differ in dimension"),
        ((3, 3), {"mode": "interpolate", "train_grid": (0, 2)}, r"train_grid has to hold .* not \(0, 2\)"),
    ],
)
def test_bad_grids(grid, options, message):
    with pytest.raises(ValueError, match=message):
        grid_positions(grid, **options)
