"""Images on their way into a model: their proportions, and what is refused of a dataset of one's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from performer_string.images.resize import ResizeAndCrop
from train.data import module
from train.data.images import share_of_each_class
from train.data.module import ImageData
from train.data.sources import SOURCES


@pytest.mark.parametrize("size", [(32, 32), (32, 33), (33, 32), (16, 64), (64, 16), (50, 50)])
@pytest.mark.parametrize("arguments", [(100, 200), (200, 100), (80, 80), (3, 400)])
def test_no_size_changes_proportions(arguments, size):
    """A disc in the middle stays one: as high as wide, and the larger the smaller the side that it is cut at."""
    height, width = arguments
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    radius = min(arguments) / 4
    disc = ((y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2 <= radius**2) * 255
    out = ResizeAndCrop(size)(disc[None].to(torch.uint8))
    assert out.shape == (1, *size)
    factor = max(size[0] / height, size[1] / width)
    if min(arguments) > 10:
        area = (out.float() / 255).sum() / (torch.pi * (radius * factor) ** 2)
        inside = min(size) >= 2 * radius * factor  # else it is cut
        assert not inside or area == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("arguments", [(37, 64), (64, 37), (48, 48)])
def test_squares_are_as_torchvision_makes_them(arguments):
    image = torch.randint(256, (3, *arguments), dtype=torch.uint8)
    expected = v2.Compose([v2.Resize(24, antialias=True), v2.CenterCrop(24)])(image)
    assert torch.equal(ResizeAndCrop((24, 24))(image), expected)


class Own(torch.utils.data.Dataset):
    """A dataset of one's own, all of whose items are one."""

    classes = ("a", "b")

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.item


def data(item, monkeypatch) -> ImageData:
    source = replace(SOURCES["folder"], build=lambda root, train, download: Own(item), classes=2)
    monkeypatch.setitem(module.SOURCES, "custom", source)
    return ImageData("custom", size=[8, 8])


@pytest.mark.parametrize("image", [Image.new("RGB", (9, 12)), torch.zeros(3, 9, 12, dtype=torch.uint8)])
def test_user_dataset(image, monkeypatch):
    result, label = data((image, 1), monkeypatch).held_out("test", (8, 8))[0]
    assert (result.shape, result.dtype, label) == ((3, 8, 8), torch.uint8, 1)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.rand(4, 9, 9), 1), r"is torch.float32 of shape \[4, 8, 8\]: .* tensor \[C, H, W\], of 3 channels"),
        ((Image.new("RGBA", (9, 9)), 1), r"is torch.uint8 of shape \[4, 8, 8\]"),
        ((torch.zeros(3, 9, 9, dtype=torch.bool), 1), "pixels are floats, or integers of 8 or 16 bits, not torch.bool"),
        (("a.png", 1), r"it must be a PIL image, or an array or tensor \[C, H, W\], not str"),
        ({"image": Image.new("RGB", (9, 9)), "label": 1}, r"item \d+ of the data must be a pair .* not a dict"),
        ((Image.new("RGB", (9, 9)), 2), "is of class 2: 2 are numbered from 0"),
        ((Image.new("RGB", (9, 9)), -1), "is of class -1"),
    ],
)
def test_bad_items(item, message, monkeypatch):
    custom = data(item, monkeypatch)
    for images in (custom.held_out("val", (8, 8)), custom.train_dataset()):
        with pytest.raises(ValueError, match=message):
            images[0]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.55, 1.0])
def test_a_share_of_each_class_lies_within_every_larger_one(share):
    generator = torch.Generator().manual_seed(3)
    labels, indices = torch.randint(4, (173,), generator=generator), torch.randperm(1000, generator=generator)[:173]
    chosen = share_of_each_class(indices, labels, share)
    kept = torch.isin(indices, chosen)
    assert torch.equal(indices[kept], chosen), "another order"
    for label in range(4):
        of_class = indices[labels == label]
        count = max(1, round(share * len(of_class)))
        assert torch.equal(chosen[labels[kept] == label], of_class[:count])  # the first ones
    larger = share_of_each_class(indices, labels, min(1.0, 1.7 * share))
    assert torch.isin(chosen, larger).all()


def test_a_share_is_refused_where_classes_are_not_listed_or_images_are_drawn():
    with pytest.raises(ValueError, match="share of stored images, and those of arrow are drawn"):
        ImageData(source="arrow", train_fraction=0.5)
    with pytest.raises(ValueError, match=r"train_fraction must be above 0 and at most 1, not 1\.5"):
        ImageData(source="mnist", train_fraction=1.5)
