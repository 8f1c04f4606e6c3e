"""From the image of an item of a dataset, of any type, to a tensor; and batches of 8 bits and of floats together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torchvision.transforms import v2

from performer_string.images.deep import as_tensor, is_image
from performer_string.images.preprocessing import as_floats
from performer_string.images.reading import DARK
from performer_string.utils.log import warn_once
from train.data.normalisation import PixelNormalisation

log = logging.getLogger(__name__)
DEEP_MODES = ("I", "F")  # Pillow's modes of more than 8 bits begin so


def has_floats(image: Any) -> bool:
    """Return whether the pixels of an image are floats."""
    if isinstance(image, Image.Image):
        return image.mode == "F"
    return image.dtype.kind == "f" if isinstance(image, np.ndarray) else bool(image.is_floating_point())


class ToPixels:
    """First transform of an image: to a tensor [C, H, W], uint8 of 8 bits, else float32 by `as_tensor`.

    Args:
        channels: number of channels C of the model.
        grey: whether images are made grey.
        normalisation: mean and standard deviation, which floats need of their own.
    """

    def __init__(self, channels: int, grey: bool, normalisation: PixelNormalisation):
        self.channels, self.grey, self.normalisation = channels, [v2.Grayscale()] if grey else [], normalisation
        self.of_eight_bits = v2.Compose([*self.grey, v2.PILToTensor()])  # Pillow's grey, which torch would round apart

    def __call__(self, image: Any) -> Tensor:
        """Return the tensor of an image.

        Raises:
            ValueError: what is no image, or floats with the mean and standard deviation of 8 bits.
        """
        if not is_image(image):
            raise ValueError(f"it must be a PIL image, or an array or tensor [C, H, W], not {type(image).__name__}")
        self.normalisation.check(has_floats(image))
        if isinstance(image, Image.Image) and not image.mode.startswith(DEEP_MODES):
            image = self.of_eight_bits(image)
        pixels = as_tensor(image, self.channels)
        if pixels.is_floating_point() and not self.normalisation.is_own and 0 < pixels.max() < DARK:
            warn_once(
                log,
                "dark",
                f"an image of more than 8 bits has no pixel above {pixels.max():.2g}, where 1 is white. Where its "
                f"numbers use a part of their range only, take --data.measure_mean true.",
            )
        for grey in self.grey if len(pixels) == 3 else []:
            pixels = grey(pixels)
        return pixels


def stacked(items: Sequence[tuple[Tensor, Any]]) -> Any:
    """Return a batch of images and labels, as floats where some images are floats: the `collate_fn` of loaders."""
    if len({image.dtype for image, _ in items}) > 1:
        items = [(as_floats(image), label) for image, label in items]
    return default_collate(list(items))
