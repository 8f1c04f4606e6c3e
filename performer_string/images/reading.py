"""Reading of image files as RGB."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from performer_string.images.normalisation import BACKGROUND
from performer_string.utils.log import warn_once

log = logging.getLogger(__name__)

BITS_PER_SAMPLE, SAMPLE_FORMAT, SIGNED = 258, 339, 2  # two tags of TIFF, and a value of the second
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0  # a tag of TIFF, and a value of it
PLANES, SEPARATE = 284, 2  # a tag of TIFF, and a value of it
# Endings of photographs and drawings that Pillow does not read.
OTHER_ENDINGS = frozenset((".heic", ".heif", ".jxl", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf"))
VIDEO_ENDINGS = frozenset((".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"))
DARK = 1 / 8  # share of white below which the largest value of an image is reported
ROWS = 256  # rows of an image that are scaled at a time
ORIENTATIONS = {  # by the EXIF tag of the orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def why_unreadable(name: str, error: Exception) -> str:
    """Return in one line why an image cannot be read.

    Args:
        name: name of the file.
        error: error that the reader raised.
    """
    if isinstance(error, UnidentifiedImageError):
        ending = Path(name).suffix.lower()
        if ending in VIDEO_ENDINGS:
            return "a video, where an image is needed: take single frames of it, as JPEG or PNG"
        if ending in (".tif", ".tiff"):
            return "a TIFF of a kind that Pillow does not read: save its array [C, H, W] as .npy"
        known = ending in OTHER_ENDINGS
        return "of a kind that is not read: make it a JPEG or PNG" if known else "no image, or of an unknown kind"
    return " ".join(str(error).split()) or type(error).__name__


def check_background(colour: Sequence[int]) -> None:
    """Raise a ValueError unless a colour is three numbers of 0 to 255."""
    if len(colour) != 3 or not all(0 <= value <= 255 for value in colour):
        raise ValueError(f"background must be red, green and blue, each 0 to 255, not {list(colour)}.")


def is_transparent(image: Image.Image) -> bool:
    """Return whether any pixel of an image, or of its palette, is not opaque."""
    if not image.has_transparency_data:
        return False
    return bool(image.convert("RGBA").getchannel("A").getextrema()[0] != 255)


def lay_on(image: Image.Image, background: Sequence[int]) -> Image.Image:
    """Return an image as RGB, with a colour beneath it where it is transparent."""
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (*background, 255)), layer).convert("RGB")


def tag_of(image: Image.Image, number: int, default: int) -> tuple[int, ...]:
    """Return the values of a tag of TIFF, and the default for other files."""
    value = getattr(image, "tag_v2", {}).get(number, default)
    return value if isinstance(value, tuple) else (value,)


def is_signed(image: Image.Image) -> bool:
    """Return whether an image is a TIFF of signed numbers of 16 bits."""
    return tag_of(image, BITS_PER_SAMPLE, 16) == (16,) and tag_of(image, SAMPLE_FORMAT, 1) == (SIGNED,)


def largest_value(image: Image.Image) -> int:
    """Return the number that stands for white in an image of one channel of more than 8 bits."""
    return 4095 if tag_of(image, BITS_PER_SAMPLE, 16) == (12,) else 65535


def in_range(values: Any, white: int) -> int:
    """Return the number that stands for white, or raise a ValueError where an array or tensor is not in its range."""
    least, most = int(values.min()), int(values.max())
    if least < 0 or most > white:
        raise ValueError(f"pixels from {least} to {most} have no range: save it with 8 or 16 bits, or as floats")
    return white


def is_negative(image: Image.Image) -> bool:
    """Return whether zero stands for white, as in scans. Pillow inverts such images of up to 8 bits, and no others."""
    return getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO


def eight_bits(image: Image.Image, white: int, negative: bool) -> Image.Image:
    """Return an image of one channel of 12 or 16 bits, or of 32 that hold such numbers, as 8 bits a pixel.

    Pillow's conversion would cut off at 255.

    Args:
        image: image of one channel.
        white: number that stands for white, from `largest_value`.
        negative: whether zero stands for white, from `is_negative`.

    Raises:
        ValueError: numbers beyond 16 bits, which have no range to scale from.
    """
    values = np.asarray(image)
    in_range(values, white)
    if 0 < values.max() < white * DARK:
        warn_once(
            log,
            "dark",
            f"an image of {white.bit_length()} bits a pixel has no value above {values.max()}, where {white} is white, "
            f"so that 8 bits keep {int(values.max()) * 255 // white + 1} of its levels. Where its numbers have fewer "
            f"bits, scale them to the whole range before, or save them with 8 bits.",
        )
    scaled = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), ROWS):  # fractions of a whole image would take eight times its memory
        scaled[start : start + ROWS] = (values[start : start + ROWS] * (255 / white)).round()
    grey = Image.fromarray(255 - scaled if negative else scaled)
    clear = image.info.get("transparency")
    if isinstance(clear, int):  # the one value of a PNG that is transparent
        grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return grey


def check_planes(image: Image.Image) -> None:
    """Raise a ValueError for a TIFF with separate planes of 16 bits, of which Pillow makes other pixels."""
    if tag_of(image, PLANES, 1) == (SEPARATE,) and len(bits := tag_of(image, BITS_PER_SAMPLE, 8)) > 1 and max(bits) > 8:
        raise ValueError("colours of 16 bits in separate planes are not read: save its array [C, H, W] as .npy")


def upright(image: Image.Image) -> Image.Image:
    """Return an image rotated and mirrored as its EXIF says.

    Pillow's `exif_transpose` writes all tags anew, and fails on those that cameras and editors got wrong.
    """
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # EXIF that is no EXIF, of a file whose pixels may be whole
        orientation = 1
    method = ORIENTATIONS.get(orientation) if isinstance(orientation, int) else None
    return image if method is None else image.transpose(method)


def as_rgb(image: Image.Image, background: Sequence[int] = BACKGROUND) -> Image.Image:
    """Return an image as RGB with 8 bits a channel, upright as its EXIF says.

    `info["laid_on"]` of the result is whether it was transparent anywhere.

    Args:
        image: image in any mode of Pillow. 12 and 16 bits a pixel are scaled to 8. Of several frames the first is
            taken.
        background: colour beneath transparent pixels: red, green and blue, each 0 to 255.

    Raises:
        ValueError: pixels without a range to scale from.
    """
    check_planes(image)
    oriented = upright(image)
    if oriented.mode == "F":
        raise ValueError("floating-point pixels have no range: save it with 8 or 16 bits")
    if oriented.mode.startswith("I"):
        if is_signed(image):
            raise ValueError("signed 16-bit pixels have no range: save it with 8 bits, or 16 without a sign")
        oriented = eight_bits(oriented, largest_value(image), is_negative(image))
    clear = is_transparent(oriented)
    has_palette = oriented.mode == "P" and oriented.has_transparency_data  # Pillow would warn of losing transparency
    result = lay_on(oriented, background) if clear or has_palette else oriented.convert("RGB")
    result.info["laid_on"] = clear
    return result


def open_image(path: str, background: Sequence[int] = BACKGROUND) -> Image.Image:
    """Return the image of a file by `as_rgb`.

    Args:
        path: path of the file.
        background: colour beneath transparent pixels, see `as_rgb`.

    Raises:
        OSError: a file that cannot be read, for any reason.
    """
    with readable(), open(path, "rb") as file:
        return as_rgb(Image.open(file), background)


@contextmanager
def readable() -> Iterator[None]:
    """Turn whatever a reader of files raises into an OSError."""
    try:
        yield
    except OSError:
        raise
    except Image.DecompressionBombError as error:
        raise OSError(f"it is larger than Pillow reads: {str(error).partition(',')[0]}. Make it smaller") from error
    except Exception as error:  # Pillow raises many types: a damaged chunk is a SyntaxError
        raise OSError(f"{type(error).__name__}: {error}") from error
