"""Images and their masks, transformed together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.tv_tensors import Mask

from performer_string.images.resize import ResizeAndCrop
from train.data.augmentations import AUGMENTATIONS
from train.data.conversion import ToPixels
from train.data.images import Transformed
from train.data.sizes import ONE, Views
from train.data.unlabelled import IGNORED, VOID

if TYPE_CHECKING:
    from train.data.module import ImageData


class PadTo(v2.Transform):
    """Pad images at their ends to a size at least: images with zeros, masks with pixels without a class.

    Args:
        size: height and width in pixels.
    """

    def __init__(self, size: Sequence[int]):
        super().__init__()
        self.size = size

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        down, right = (max(0, least - side) for least, side in zip(self.size, inpt.shape[-2:], strict=True))
        if not down and not right:
            return inpt
        return v2.functional.pad(inpt, [0, 0, right, down], fill=VOID if isinstance(inpt, Mask) else 0)


def of_image(convert: ToPixels, image: Any, mask: Mask) -> tuple[Tensor, Mask]:
    """Return an image as a tensor, and its mask as it is."""
    return convert(image), mask


def mask_transform(options: ImageData, size: Sequence[int], training: bool = False, views: Views = ONE) -> v2.Compose:
    """Return the transform of an image, to uint8 or float32 by `ToPixels`, and its mask, uint8, to a size.

    With the augmentation `crop` they keep their scale: training takes a random part, and all else the middle. Without
    it they are resized until they cover the size, as images of classes are.

    Args:
        options: data module with the options for grey images and augmentations.
        size: height and width in pixels.
        training: whether to augment.
        views: one view; `check_views` refuses others.
    """
    pixels = ToPixels(options.in_channels, options.grey, options.pixels)
    steps: list[Any] = [partial(of_image, pixels), v2.ToImage()]
    augment = options.augment if training else []
    if "crop" in options.augment:
        steps.append(PadTo(size))
        steps += [] if training else [v2.CenterCrop(list(size))]
    elif "resized-crop" not in augment:  # it resizes by itself
        steps.append(ResizeAndCrop((size[0], size[1])))
    return v2.Compose([*steps, *(AUGMENTATIONS[name](options) for name in augment)])


class MaskedImages(Transformed):
    """Subset of a dataset of pairs (image, mask), with a transform of both.

    Images are PIL images, arrays or tensors [C, H, W]. Masks hold the class of each pixel, [H, W]; `VOID` is of pixels
    without a class, which become `IGNORED`.
    """

    def _read(self, number: int) -> tuple[Tensor, Any]:
        image, mask = self.dataset[number]
        image, mask = self.transform(image, Mask(mask))
        labels = mask.as_subclass(Tensor).long()
        return image.as_subclass(Tensor), torch.where(labels == VOID, IGNORED, labels)

    def check_label(self, number: int, label: Any) -> None:
        """Raise a ValueError for classes that do not exist."""
        if bool((label >= self.classes).any()):
            raise ValueError(
                f"the mask of image {number} has the class {int(label.max())}: {self.classes} are numbered from 0."
            )
