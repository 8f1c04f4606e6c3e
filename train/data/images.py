"""Transforms and order of the images of a dataset."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

AUGMENTATIONS = {
    "pad-crop": lambda size: v2.RandomCrop(size, padding=max(1, size[0] // 8)),
    "resized-crop": lambda size: v2.RandomResizedCrop(size, scale=(0.35, 1.0), antialias=True),
    "flip": lambda size: v2.RandomHorizontalFlip(),
    "rand-augment": lambda size: v2.RandAugment(),
    "erase": lambda size: v2.RandomErasing(p=0.25),
}


def shuffled(total: int) -> Tensor:
    """Return the order of `total` images, the same in all runs.

    Folders are sorted by class, so that the first images alone would be of one class.
    """
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))


class UnreadableImageError(ValueError):
    """An image whose file is damaged, or of a kind that Pillow does not read."""


class Cover(v2.Transform):
    """Resize images until they cover a size and cut out their middle: no proportion changes.

    An image of extreme proportions is cut first, so that resizing it takes no more memory than others do.
    """

    most = 8  # how many times as long as the size asked for an image is resized whole

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        self.size = size

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        least_height, least_width = self.size
        inpt = self.cut(inpt)
        height, width = inpt.shape[-2:]
        if height * least_width < width * least_height:  # too wide: the height decides, and the width is rounded down
            size = [least_height, max(least_width, least_height * width // height)]
        else:
            size = [max(least_height, least_width * height // width), least_width]
        return v2.functional.center_crop(v2.functional.resize(inpt, size, antialias=True), list(self.size))

    def cut(self, image: Any) -> Any:
        """Return the middle of an image that is far longer than the size asked for, of the same parity."""
        (height, width), (least_height, least_width) = image.shape[-2:], self.size
        longest = [
            math.ceil(self.most * least_height * width / least_width),
            math.ceil(self.most * least_width * height / least_height),
        ]
        sides = [min(side, most + (side - most) % 2) for side, most in zip((height, width), longest, strict=True)]
        return image if sides == [height, width] else v2.functional.center_crop(image, sides)


class Transformed(Dataset[tuple[Tensor, int]]):
    """A part of a dataset's images, through a transform.

    Raises:
        UnreadableImageError: an image that cannot be read.
        ValueError: an item that is no pair of a uint8 image of so many channels and one
            of so many classes.
    """

    def __init__(self, dataset: Any, indices: Tensor, transform: v2.Transform, channels: int, classes: int):
        self.dataset, self.indices, self.transform = dataset, indices, transform
        self.channels, self.classes = channels, classes

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = int(self.indices[index])
        try:
            item = self.dataset[number]
        except OSError as error:
            files = getattr(self.dataset, "samples", None)
            name = f"image {number}" if files is None else files[number][0]
            raise UnreadableImageError(f"{name} cannot be read ({error}). Repair it, or take it away.") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"item {number} of the data has to be a pair (image, class), not a {type(item).__name__}.")
        image, label = self.transform(item[0]), int(item[1])
        if image.dtype != torch.uint8 or image.ndim != 3 or len(image) != self.channels:
            raise ValueError(
                f"image {number} of the data is {image.dtype} of shape {list(image.shape)}: it has to be a PIL image "
                f"or a uint8 tensor [C, H, W] of {self.channels} channels. It is scaled to [0, 1] and normalised later."
            )
        if not 0 <= label < self.classes:
            raise ValueError(f"image {number} of the data is of class {label}: {self.classes} are numbered from 0.")
        return image, label
