"""Resizing of images without a change of their proportions."""

from __future__ import annotations

import math
from typing import Any

from torchvision.transforms import v2


class ResizeAndCrop(v2.Transform):
    """Resize images until they cover a size, and cut out their middle: proportions do not change.

    An image of extreme proportions is cut first, so that resizing it takes no more memory than others do.

    Args:
        size: height and width, in pixels.
        place: position of the part that is cut out, from 0 for the left or upper end to 1 for the right or lower end.
    """

    most = 8  # images longer than this many times the proportions of the size are cut before they are resized

    def __init__(self, size: tuple[int, int], place: float = 0.5):
        super().__init__()
        self.size, self.place = size, place

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        least_height, least_width = self.size
        inpt = self.cut(inpt)
        height, width = inpt.shape[-2:]
        if height * least_width < width * least_height:  # too wide: the height decides, and the width is rounded down
            size = [least_height, max(least_width, least_height * width // height)]
        else:
            size = [max(least_height, least_width * height // width), least_width]
        top, left = (round(self.place * (side - least)) for side, least in zip(size, self.size, strict=True))
        return v2.functional.crop(v2.functional.resize(inpt, size, antialias=True), top, left, *self.size)

    def cut(self, image: Any) -> Any:
        """Return the middle of an image that is far longer than the size asked for, of the same parity."""
        (height, width), (least_height, least_width) = image.shape[-2:], self.size
        longest = [
            math.ceil(self.most * least_height * width / least_width),
            math.ceil(self.most * least_width * height / least_height),
        ]
        sides = [min(side, most + (side - most) % 2) for side, most in zip((height, width), longest, strict=True)]
        return image if sides == [height, width] else v2.functional.center_crop(image, sides)
