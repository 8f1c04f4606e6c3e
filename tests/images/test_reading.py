"""Kinds of image files: transparent ones get a background, and numbers become 8 bits or an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from performer_string.images.reading import open_image
from performer_string.images.resize import ResizeAndCrop
from performer_string.utils import log
from train.data.module import ImageData

DISC = ((np.indices((32, 32)) - 16) ** 2).sum(0) < 100
RAMP = np.arange(64, dtype=np.int32).reshape(8, 8)


def drawing(mode: str) -> Image.Image:
    """Return a black disc on nothing."""
    if mode == "P":
        image = Image.fromarray(DISC.astype(np.uint8)).convert("P")
        image.putpalette([0] * 768)
        return image
    channels = np.zeros((32, 32, len(mode)), np.uint8)
    channels[DISC, -1] = 255
    return Image.fromarray(channels)


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("0.png", "RGBA", {}),
        ("0.png", "LA", {}),
        ("0.webp", "RGBA", {"lossless": True}),
        ("0.tiff", "RGBA", {}),
        ("0.png", "P", {"transparency": bytes([0, 255])}),
        ("0.gif", "P", {"transparency": 0}),
    ],
)
@pytest.mark.parametrize("background", [(128, 128, 128), (255, 200, 0)])
def test_background_shows_through(tmp_path, name, mode, options, background):
    drawing(mode).save(tmp_path / name, **options)
    result = open_image(str(tmp_path / name), background)
    expected = np.where(DISC[:, :, None], 0, background)
    np.testing.assert_array_equal(np.asarray(result), expected)


def test_half_transparent_pixels_are_mixed(tmp_path):
    Image.new("RGBA", (2, 2), (200, 100, 0, 128)).save(tmp_path / "0.png")
    mixed = np.asarray(open_image(str(tmp_path / "0.png"), (0, 100, 200)))[0, 0]
    np.testing.assert_allclose(mixed, [100, 100, 100], atol=1)


def test_transparency_is_reported_once(tmp_path, caplog):
    """Also where several processes load the images."""
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(4):
            drawing("RGBA").save(tmp_path / "train" / name / f"{i}.png")
    data = ImageData("folder", root=str(tmp_path), size=[32, 32], background=[255, 0, 0], workers=0)
    images = data.train_dataset()
    assert [images[i][0][:, 0, 0].tolist() for i in range(2)] == [[255, 0, 0]] * 2
    assert caplog.text.count("are laid on data.background=[255, 0, 0] (red, green, blue)") == 1
    data.splits().train.reported.fill_(False)
    list(DataLoader(images, num_workers=1))
    assert data.splits().train.reported
    again = ImageData.from_checkpoint(data.state_dict())
    assert again.held_out("val", (32, 32))[0][0][:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("colour", [[255, 255], [0, 0, 256], [-1, 0, 0]])
def test_background_that_is_no_colour(colour):
    with pytest.raises(ValueError, match="background must be red, green and blue, each 0 to 255, not"):
        ImageData("folder", background=colour)


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("0.tiff", Image.fromarray((RAMP * 1000).astype(np.uint16)), (RAMP * 1000 / 257).round()),
        ("0.tiff", Image.fromarray(RAMP * 1000), (RAMP * 1000 / 257).round()),
        ("0.png", Image.fromarray(RAMP > 30), (RAMP > 30) * 255),
        ("0.tiff", Image.fromarray(RAMP > 30), (RAMP > 30) * 255),
        ("0.tiff", Image.new("CMYK", (8, 8), (0, 0, 0, 55)), np.full((8, 8), 200)),
    ],
)
def test_kinds_of_pixels(tmp_path, name, image, expected):
    image.save(tmp_path / name)
    np.testing.assert_array_equal(np.asarray(open_image(str(tmp_path / name))), np.stack([expected] * 3, -1))


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (RAMP * 100_000, r"pixels from 0 to 6300000 have no range: save it with 8 or 16 bits"),
        (RAMP - 5, "pixels from -5 to 58 have no range"),
        (RAMP.astype(np.float32), "floating-point pixels have no range"),
    ],
)
def test_pixels_without_a_range(tmp_path, pixels, message):
    Image.fromarray(pixels).save(tmp_path / "0.tiff")
    with pytest.raises(OSError, match=message):
        open_image(str(tmp_path / "0.tiff"))


@pytest.mark.parametrize("long", [(4, 40_000), (40_000, 4)])
def test_extreme_proportions_take_little_memory(long, monkeypatch):
    """The middle is that of the whole image, resized."""
    y, x = torch.meshgrid(torch.linspace(-60, 60, long[0]), torch.linspace(-60, 60, long[1]), indexing="ij")
    image = (127 + 120 * torch.sin(x + y)).to(torch.uint8)[None]
    monkeypatch.setattr(ResizeAndCrop, "most", 10**6)
    whole = ResizeAndCrop((12, 12))(image)
    monkeypatch.undo()
    areas, resize = [], v2.functional.resize
    monkeypatch.setattr(
        v2.functional,
        "resize",
        lambda image, *others, **more: areas.append(image.numel()) or resize(image, *others, **more),
    )
    torch.testing.assert_close(ResizeAndCrop((12, 12))(image), whole, atol=1, rtol=0)
    assert areas == [4 * 4 * 8]


@pytest.mark.parametrize(("largest", "warned"), [(4095, True), (9000, False), (65535, False)])
def test_values_far_below_white_are_reported(tmp_path, caplog, monkeypatch, largest, warned):
    monkeypatch.setattr(log, "_warned", set())
    Image.fromarray((RAMP * (largest / 63)).round().astype(np.uint16)).save(tmp_path / "0.png")
    levels = len(np.unique(np.asarray(open_image(str(tmp_path / "0.png")))))
    assert (f"of 16 bits a pixel has no value above {largest}" in caplog.text) == warned
    assert (f"keep {largest * 255 // 65535 + 1} of its levels" in caplog.text) == warned
    assert levels > 30 or warned
