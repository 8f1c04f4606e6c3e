"""Images of more than 8 bits, and of any number of channels: no bit is lost, and one rule scales them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError

from performer_string import Preprocessing
from performer_string.images.deep import as_picture, as_tensor, open_picture, read_image, to_pixels
from performer_string.images.reading import open_image, why_unreadable
from performer_string.utils import log
from tests.helpers.deep_images import write_png
from tests.helpers.deep_images import write_tiff as write_colours
from tests.helpers.image_files import GREY, write_tiff

RNG = np.random.default_rng(0)
DEEP = RNG.integers(0, 65536, (3, 5, 7)).astype(np.uint16)


def read(path) -> np.ndarray:
    image = read_image(str(path), (255, 0, 51))
    assert isinstance(image, np.ndarray)
    return image


@pytest.mark.parametrize("kind", ["png", "tiff", "npy", "npy [H, W]", "npy of another machine"])
def test_grey_files_keep_16_bits(tmp_path, kind):
    path = tmp_path / f"0.{kind[:4].strip()}"
    if kind.startswith("npy"):
        np.save(path, {"npy": DEEP[:1], "npy [H, W]": DEEP[0]}.get(kind, DEEP[:1].astype(">u2")))
    else:
        Image.fromarray(DEEP[0]).save(path)
    pixels = as_tensor(read(path), 1)
    assert torch.equal(pixels, torch.from_numpy(DEEP[:1].astype(np.float32) / 65535))
    assert torch.equal(as_tensor(read(path), 3), pixels.expand(3, -1, -1))


def test_colours_of_a_png_keep_16_bits(tmp_path):
    write_png(tmp_path / "0.png", DEEP)
    expected = torch.from_numpy(DEEP.astype(np.float32) / 65535)
    assert torch.equal(as_tensor(read(tmp_path / "0.png"), 3), expected)
    assert torch.equal(as_tensor(Image.open(tmp_path / "0.png"), 3), expected)  # as a user opens it
    grey = 0.299 * expected[0] + 0.587 * expected[1] + 0.114 * expected[2]
    torch.testing.assert_close(as_tensor(read(tmp_path / "0.png"), 1)[0], grey)


def test_colours_of_a_tiff(tmp_path):
    write_colours(tmp_path / "0.tif", DEEP, separate=False)
    np.testing.assert_array_equal(read(tmp_path / "0.tif"), DEEP)
    write_colours(tmp_path / "0.tif", DEEP, separate=True)  # of which Pillow reads other pixels
    for function in (read_image, open_image):
        with pytest.raises(OSError, match=r"in separate planes are not read: save its array \[C, H, W\] as .npy"):
            function(str(tmp_path / "0.tif"))
    error = UnidentifiedImageError()
    assert why_unreadable("a.TIF", error) == (
        "a TIFF of a kind that Pillow does not read: save its array [C, H, W] as .npy"
    )


def test_transparent_colours_of_16_bits_are_laid_on_the_background(tmp_path):
    opaque = np.array([[0, 65535, 6553]], np.uint16)
    pixels = np.concatenate([np.full((3, 1, 3), 1000, np.uint16), opaque[None]])
    write_png(tmp_path / "0.png", pixels)
    found = read(tmp_path / "0.png")[:, 0]
    share = opaque[0] / 65535
    expected = 1000 * share + np.array([[65535], [0], [51 * 257]]) * (1 - share)
    np.testing.assert_array_equal(found, expected.round())


def test_colours_of_16_bits_are_turned_by_their_exif(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    write_png(tmp_path / "0.png", DEEP, exif.tobytes()[6:])
    np.testing.assert_array_equal(read(tmp_path / "0.png"), np.rot90(DEEP, -1, (1, 2)))


def test_grey_tiffs(tmp_path):
    """12 bits have the range of 16, zero may be white, and signed numbers are divided by 32767."""
    write_tiff(tmp_path / "12.tiff", 12)
    write_tiff(tmp_path / "negative.tiff", 16, negative=True)
    write_tiff(tmp_path / "signed.tiff", 16, signed=True)
    expected = torch.from_numpy(GREY.astype(np.float32) / 255)[None]
    for name in ("12", "negative", "signed"):
        torch.testing.assert_close(as_tensor(read(tmp_path / f"{name}.tiff"), 1), expected, atol=3e-4, rtol=0)
    assert read(tmp_path / "signed.tiff").dtype == np.int16
    values = RNG.normal(0, 1000, (4, 6)).astype(np.float32)
    Image.fromarray(values).save(tmp_path / "float.tiff")
    assert torch.equal(as_tensor(read(tmp_path / "float.tiff"), 1), torch.from_numpy(values)[None])


def test_the_one_transparent_value_of_a_grey_png(tmp_path):
    Image.fromarray(np.array([[7, 40000]], np.uint16)).save(tmp_path / "0.png", transparency=7)
    level = round(257 * (0.299 * 255 + 0.114 * 51))
    np.testing.assert_array_equal(read(tmp_path / "0.png"), [[[level, 40000]]])


@pytest.mark.parametrize(
    ("dtype", "white"),
    [("uint16", 65535), ("int16", 32767), ("int32", 65535), ("int64", 65535), ("float16", 1), ("float64", 1)],
)
def test_the_rule_of_types(dtype, white):
    array = np.array([[0, 1], [100, 30000]]).astype(dtype)
    expected = torch.from_numpy(array.astype(np.float32) / white)[None]
    assert torch.equal(as_tensor(array, 1), expected)
    assert torch.equal(as_tensor(torch.from_numpy(array)[None], 1), expected)


def test_8_bits_stay_as_they_are():
    array = RNG.integers(0, 256, (4, 5, 7)).astype(np.uint8)
    assert torch.equal(as_tensor(array, 4), torch.from_numpy(array))
    assert as_tensor(array, 4).dtype == torch.uint8


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[0, 70000]]), "pixels from 0 to 70000 have no range"),
        (np.array([[0, -1]]), "pixels from -1 to 0 have no range"),
        (np.array([[0, np.nan]]), "no finite numbers"),
        (np.array([[True]]), "floats, or integers of 8 or 16 bits, not torch.bool"),
        (np.zeros((1, 3, 4, 4)), r"\[H, W\] or \[C, H, W\], not \[1, 3, 4, 4\]"),
        (np.zeros((3, 0, 4)), r"not \[3, 0, 4\]"),
    ],
)
def test_what_is_no_image(tmp_path, array, message):
    with pytest.raises(ValueError, match=message):
        to_pixels(torch.from_numpy(array))
    np.save(tmp_path / "0.npy", array)
    with pytest.raises(OSError, match=message):
        read_image(str(tmp_path / "0.npy"))


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "0.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(OSError, match="allow_pickle"):
        read_image(str(tmp_path / "0.npy"))
    (tmp_path / "1.npy").write_bytes(b"")
    with pytest.raises(OSError, match=r"No data left in file|EOF"):
        read_image(str(tmp_path / "1.npy"))


def test_16_bits_that_pillow_does_not_give_are_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(log, "_warned", set())
    write_png(tmp_path / "0.png", DEEP[:2])
    assert isinstance(read_image(str(tmp_path / "0.png")), Image.Image)
    assert "a PNG of the kind LA;16B is read with 8 bits: save its array [C, H, W] as .npy" in caplog.text


def test_normalisation_of_a_model():
    known = Preprocessing((100.0,) * 5, (50.0,) * 5)
    array = RNG.normal(100, 50, (5, 8, 8)).astype(np.float32)
    expected = (torch.from_numpy(array) - 100) / 50
    assert torch.equal(known.transform((8, 8))(array), expected)
    assert torch.equal(known.normalise(torch.from_numpy(array)), expected)


def test_pictures_to_look_at(tmp_path):
    np.save(tmp_path / "0.npy", np.linspace(-3, 5, 12).reshape(1, 3, 4).repeat(5, 0))
    picture = np.asarray(open_picture(str(tmp_path / "0.npy")))
    assert picture.shape == (3, 4, 3)
    assert (picture.min(), picture.max()) == (0, 255)
    np.save(tmp_path / "0.npy", np.full((3, 3, 4), 7.0))
    assert np.asarray(open_picture(str(tmp_path / "0.npy"))).max() == 0
    assert as_picture(torch.zeros(1, 3, 4)).shape == (3, 4, 1)
