"""Sizes of images: how they are given, named and ordered."""

from __future__ import annotations

import copy
import pickle

import pytest

from train.data.module import ImageData
from train.data.sizes import Size, ascending


@pytest.mark.parametrize("arguments", ["96x128", [96, 128], (96, 128), Size(96, 128)])
def test_height_and_width(arguments):
    size = Size.of(arguments)
    assert (size.height, size.width, f"{size} px") == (96, 128, "96x128 px")
    assert size.side**2 == pytest.approx(96 * 128)


@pytest.mark.parametrize("arguments", ["8x96x96", [8, 96, 96], Size(8, 96, 96)])
def test_frames_come_first(arguments):
    size = Size.of(arguments)
    assert (str(size), size.height, size.width, f"{size:>8}") == ("8x96x96", 96, 96, " 8x96x96")
    assert size.side**3 == pytest.approx(8 * 96 * 96)
    assert pickle.loads(pickle.dumps(size)) == size
    assert isinstance(copy.deepcopy(size), Size)


@pytest.mark.parametrize("arguments", [168, "168", [168, 168], "168x168"])
def test_a_square_is_one_number(arguments):
    assert (Size.of(arguments), str(Size.of(arguments)), Size.of(arguments).side) == ((168, 168), "168", 168)


def test_ascending_orders_by_area():
    sizes = ["96x128", "128x96", "112", "60x200", "110", "96x128"]
    assert [str(size) for size in ascending(map(Size.of, sizes))] == ["60x200", "110", "96x128", "128x96", "112"]


@pytest.mark.parametrize(
    "arguments", ["", "0", "60x0", "60x", "x60", "6x60x84x3", "6x0x3", "6.5", "-4", "60 x 84", 0, [6, 60, 84, 3], [60]]
)
def test_bad_sizes(arguments):
    with pytest.raises(ValueError, match=r"a size is a .*number"):
        Size.of(arguments)


def test_sizes_to_validate_at():
    data = ImageData("mnist", size=[28, 42], resolutions=[28, "28x42", "42x28", 28])
    assert list(map(str, data.sizes())) == ["28x42", "28", "42x28"]
    with pytest.raises(ValueError, match="height x width, like 96x128, not '28by42'"):
        ImageData("mnist", resolutions=["28by42"])
