"""Transforms and order of the images of a dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from performer_string.images.reading import why_unreadable
from performer_string.images.resize import ResizeAndCrop
from train.data.augmentations import AUGMENTATIONS
from train.data.conversion import ToPixels
from train.data.sizes import ONE, Views
from train.data.videos import Crops, Frames, time_behind_channels
from train.utils.output import printable

if TYPE_CHECKING:
    from train.data.module import ImageData


def image_transform(options: ImageData, size: Sequence[int], training: bool = False, views: Views = ONE) -> v2.Compose:
    """Return the transform from an image, or from a video, to a tensor of a size, uint8 or float32 by `ToPixels`.

    Args:
        options: data module with the options for grey images and augmentations.
        size: height and width in pixels, for videos preceded by the number of frames.
        training: whether to choose random frames and augment. Images in memory are augmented by the loader.
        views: number of views of a video; several give [V, C, T, H, W].
    """
    first: list[Any] = [v2.Grayscale()] if options.grey and len(size) == 3 else []
    last: list[Any] = []
    if views.total > 1:
        frames = Frames(size[0], random=False, segments=views.segments, stride=options.frame_stride)
        return v2.Compose([frames, *first, Crops((size[-2], size[-1]), views)])
    if len(size) == 3:
        first = [Frames(size[0], random=training, stride=options.frame_stride), *first]
        last = [time_behind_channels]
    else:
        first.append(ToPixels(options.in_channels, options.grey, options.pixels))
    augment = options.augment if training else []
    if "resized-crop" not in augment:  # it resizes by itself
        first.append(ResizeAndCrop((size[-2], size[-1])))
    if not options.in_memory:
        first += [AUGMENTATIONS[name](options) for name in augment]
    return v2.Compose([*first, *last])


def shuffled(total: int) -> Tensor:
    """Return a fixed random order of `total` images, the same in all runs.

    Folders are sorted by class, so that the first images would all be of one class.
    """
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))


def share_of_each_class(indices: Tensor, labels: Tensor, share: float, left: int = 0) -> Tensor:
    """Return a share of the images of each class, the first ones and at least one, in their order.

    Args:
        indices: indices of images, [N].
        labels: labels of these images, [N].
        share: share of each class, in (0, 1].
        left: number of images of each class that are not chosen in any case.

    Returns:
        Chosen indices; those of a smaller share are a subset of those of a larger one.
    """
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    first = counts.cumsum(0) - counts  # offset of each class in that order
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - first[labels[order]]  # rank of each image in its class
    wanted = (share * counts).round().clamp(min=1).minimum(counts - left)
    return indices[place < wanted[labels]]


def name_of(dataset: Any, number: int) -> str:
    """Return the path of an image, or its index where it has none."""
    samples = getattr(dataset, "samples", None)
    return f"image {number}" if samples is None else str(samples[number][0])


def class_of(number: int, label: Any) -> int:
    """Return the class of an item as an integer.

    Raises:
        ValueError: a label that is no whole number, such as several of them.
    """
    try:
        whole = int(label)
        if isinstance(label, str) or whole == label:
            return whole
    except (TypeError, ValueError, RuntimeError):  # torch and numpy raise these of several numbers
        pass
    raise ValueError(
        f"item {number} of the data is no image with the number of its class, which is {label!r:.60}. A source of "
        f"several labels an image, or of numbers, says so: docs/guides/other-targets.md."
    )


def values_of(number: int, values: Any, outputs: str, count: int) -> Tensor:
    """Return the labels or numbers of an item, float32 [count].

    Raises:
        ValueError: another number of them, or values that are out of range.
    """
    try:
        found = torch.as_tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0, 0)
    low, high = (0.0, 1.0) if outputs == "labels" else (-math.inf, math.inf)
    if found.shape != (count,) or not bool(((found >= low) & (found <= high) & found.isfinite()).all()):
        raise ValueError(
            f"item {number} of the data has {values!r:.60} where its {outputs} must be: {count} finite numbers, as the "
            f"source says by `classes`{', from 0 to 1' if outputs == 'labels' else ''}."
        )
    return found


class UnreadableImageError(ValueError):
    """An image file is damaged, or in a format that Pillow does not read."""


class Transformed(Dataset[tuple[Tensor, Any]]):
    """Subset of a dataset, with a transform.

    Args:
        dataset: pairs of an image and its class, labels or numbers.
        indices: indices of the images, [N].
        transform: transform to a tensor, uint8 or float32.
        channels: number of channels of the images.
        classes: number of classes, labels or numbers.
        outputs: what models answer, as in `Source`.

    Raises:
        UnreadableImageError: an image that cannot be read.
        ValueError: an item that is no pair of an image with `channels` channels and a label below `classes`, or
            `classes` labels or numbers.
    """

    def __init__(
        self,
        dataset: Any,
        indices: Tensor,
        transform: v2.Transform,
        channels: int,
        classes: int,
        outputs: str = "class",
    ):
        self.dataset, self.indices, self.transform = dataset, indices, transform
        self.channels, self.classes, self.outputs = channels, classes, outputs

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        number = int(self.indices[index])
        try:
            image, label = self._read(number)
        except OSError as error:
            name = name_of(self.dataset, number)
            raise UnreadableImageError(
                f"{printable(name)} cannot be read ({why_unreadable(name, error)}). Repair it, or delete it for new "
                f"runs. A run that has begun needs a readable file of its name in its place: without it other images "
                f"would be held out. fit --check_data finds all such files."
            ) from error
        one = image[0] if image.ndim == 5 else image  # there may be several views
        if one.ndim not in (3, 4) or len(one) != self.channels:
            where = f" ({printable(name_of(self.dataset, number))})" if hasattr(self.dataset, "samples") else ""
            raise ValueError(
                f"image {number} of the data{where} is {image.dtype} of shape {list(image.shape)}: it must be a PIL "
                f"image, or an array or tensor [C, H, W], of {self.channels} channels, of videos [C, T, H, W]."
            )
        self.check_label(number, label)
        return image, label

    def check_label(self, number: int, label: Any) -> None:
        """Raise a ValueError for a class that does not exist."""
        if self.outputs == "class" and not 0 <= label < self.classes:
            raise ValueError(f"image {number} of the data is of class {label}: {self.classes} are numbered from 0.")

    def _read(self, number: int) -> tuple[Tensor, Any]:
        item = self.dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"item {number} of the data must be a pair (image, class), not a {type(item).__name__}.")
        count, one = self.classes, self.outputs == "class"
        label = class_of(number, item[1]) if one else values_of(number, item[1], self.outputs, count)
        try:
            return self.transform(item[0]), label  # the transform decodes the frames of a video
        except (TypeError, ValueError) as error:
            raise ValueError(f"item {number} of the data is no image with the number of its class: {error}") from error
