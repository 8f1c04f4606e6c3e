"""Reading of image files as RGB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from performer_string.images.normalisation import BACKGROUND


def check_background(colour: Sequence[int]) -> None:
    """Raise a ValueError unless a colour is three numbers of 0 to 255."""
    if len(colour) != 3 or not all(0 <= value <= 255 for value in colour):
        raise ValueError(f"background has to be red, green and blue, each 0 to 255, not {list(colour)}.")


def is_transparent(image: Image.Image) -> bool:
    """Return whether any pixel of an image, or of its palette, is not opaque."""
    if not image.has_transparency_data:
        return False
    return bool(image.convert("RGBA").getchannel("A").getextrema()[0] != 255)


def lay_on(image: Image.Image, background: Sequence[int]) -> Image.Image:
    """Return an image as RGB, with a colour beneath it where it is transparent."""
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (*background, 255)), layer).convert("RGB")


def eight_bits(image: Image.Image) -> Image.Image:
    """Return an image of one channel of 16 bits, or of 32 that hold such numbers, as 8 bits a pixel.

    Pillow's conversion would cut off at 255.

    Raises:
        ValueError: numbers beyond 16 bits, which have no range to scale from.
    """
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"pixels from {values.min()} to {values.max()} have no range: save it with 8 or 16 bits")
    grey = Image.fromarray((values / 257).round().astype(np.uint8))
    clear = image.info.get("transparency")
    if isinstance(clear, int):  # the one value of a PNG that is transparent
        grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return grey


def as_rgb(image: Image.Image, background: Sequence[int] = BACKGROUND) -> Image.Image:
    """Return an image as RGB with 8 bits a channel, upright as its EXIF says.

    `info["laid_on"]` of the result is whether it was transparent anywhere.

    Args:
        image: of any mode of Pillow. 16 bits a pixel are scaled to 8.
        background: red, green and blue beneath what is transparent, each 0 to 255.

    Raises:
        ValueError: pixels without a range to scale from.
    """
    upright: Any = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        raise ValueError("floating-point pixels have no range: save it with 8 or 16 bits")
    if upright.mode.startswith("I"):
        upright = eight_bits(upright)
    clear = is_transparent(upright)
    result: Image.Image = lay_on(upright, background) if clear else upright.convert("RGB")
    result.info["laid_on"] = clear
    return result


def open_image(path: str, background: Sequence[int] = BACKGROUND) -> Image.Image:
    """Return the image of a file by `as_rgb`.

    Args:
        path: of the file.
        background: as of `as_rgb`.

    Raises:
        OSError: for any reason that it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return as_rgb(Image.open(file), background)
    except OSError:
        raise
    except Exception as error:  # Pillow raises many types: a damaged chunk is a SyntaxError
        raise OSError(f"{type(error).__name__}: {error}") from error
