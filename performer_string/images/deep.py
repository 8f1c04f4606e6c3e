"""Images of more than 8 bits a channel, or of any number of channels: files, arrays, tensors and PIL images.

One rule turns them into numbers. 8 bits stay uint8, which a normalisation divides by 255. Other integers are divided by
the largest number of their type, and floats are taken as they are.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from performer_string.images.normalisation import BACKGROUND, LUMINANCE, grey_level
from performer_string.images.reading import (
    as_rgb,
    check_planes,
    in_range,
    is_negative,
    is_signed,
    largest_value,
    readable,
    upright,
)
from performer_string.utils.log import warn_once

log = logging.getLogger(__name__)

ARRAY = ".npy"  # ending of files of numpy arrays
COLOURS = ("RGB", "RGBA")  # modes of Pillow in which 16 bits of a file become 8
LARGEST = {torch.uint16: 65535, torch.int16: 32767, torch.int32: 65535, torch.int64: 65535}  # by the type of integers
WIDE = (torch.int32, torch.int64)  # types that hold numbers of 16 bits


def raw_mode(image: Image.Image) -> str:
    """Return Pillow's name of the pixels in a file, such as RGB;16B, which the mode RGB does not tell; may be empty."""
    tile = getattr(image, "tile", None)
    if not tile:
        return ""
    arguments = tile[0][3]
    return str(arguments if isinstance(arguments, str) else (arguments or ("",))[0])


def array_of(image: Image.Image, background: Sequence[int] = BACKGROUND) -> np.ndarray | None:
    """Return the pixels of an image of more than 8 bits, [C, H, W], upright as its EXIF says; None for 8 bits.

    Args:
        image: image in any mode of Pillow. One of 16-bit colours must not be loaded yet, since Pillow keeps 8.
        background: colour beneath transparent pixels, 0 to 255.

    Returns:
        uint16, int16 for signed integers of a TIFF, or float32.

    Raises:
        ValueError: integers of more than 16 bits.
    """
    check_planes(image)
    if image.mode in COLOURS and ";16" in raw_mode(image):
        return colours_of(image, background)
    if image.mode == "F":
        return np.asarray(upright(image))[None]
    if not image.mode.startswith("I"):
        return None
    values = np.asarray(upright(image))
    if is_signed(image):
        return values.astype(np.int16)[None]
    white = in_range(values, largest_value(image))
    numbers = values.astype(np.uint16) if white == 65535 else (values * (65535 / white)).round().astype(np.uint16)
    numbers = 65535 - numbers if is_negative(image) else numbers
    clear = image.info.get("transparency")
    if isinstance(clear, int):  # the one value of a PNG that is transparent
        numbers = np.where(values == clear, np.uint16(round(257 * grey_level(background))), numbers)
    return numbers[None]


def colours_of(image: Image.Image, background: Sequence[int]) -> np.ndarray | None:
    """Return colours of 16 bits, uint16 [3, H, W], laid on a background; None where Pillow reads 8 of them only.

    Pillow keeps the higher byte of each number. Where it is told the other order of bytes, it keeps the lower one.
    """
    raw = raw_mode(image)
    other = raw[:-1] + {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}.get(raw[-1], "")
    file: Any = vars(image)["fp"]
    file.seek(0)
    content = file.read()
    high, low = (Image.open(io.BytesIO(content)) for _ in range(2))
    parts: Any = low.tile
    low.tile = [part._replace(args=other if isinstance(part[3], str) else (other, *part[3][1:])) for part in parts]
    try:
        pixels = np.asarray(upright(low)).astype(np.uint16)
    except ValueError:  # of grey and opacity there is no such mode
        kind = f"a {image.format} of the kind {raw}"
        warn_once(log, raw, f"{kind} is read with 8 bits: save its array [C, H, W] as .npy to keep 16.")
        return None
    pixels += np.asarray(upright(high)).astype(np.uint16) << 8
    colours = pixels.transpose(2, 0, 1)
    if len(colours) == 3:
        return colours
    opaque, beneath = colours[3] / 65535, 257 * np.array(background, float)[:, None, None]
    mixed = colours[:3] * opaque + beneath * (1 - opaque)
    return np.asarray(mixed.round().astype(np.uint16))


def read_image(path: str, background: Sequence[int] = BACKGROUND) -> Image.Image | np.ndarray:
    """Return the image of a file: a PIL image as RGB by `as_rgb`, or an array [C, H, W] of more bits or channels.

    Args:
        path: path of an image, or of an array [H, W] or [C, H, W] in a .npy file.
        background: colour beneath transparent pixels, see `as_rgb`.

    Raises:
        OSError: a file that cannot be read, for any reason.
    """
    with readable():
        if Path(path).suffix.lower() == ARRAY:
            array = np.load(path, allow_pickle=False)
            to_pixels(torch.from_numpy(native(array)))  # an error for what is no image
            return np.asarray(array)
        with open(path, "rb") as file:
            return of_pil(Image.open(file), background)


def of_pil(image: Image.Image, background: Sequence[int] = BACKGROUND) -> Image.Image | np.ndarray:
    """Return a PIL image as `read_image` returns that of a file."""
    array = array_of(image, background)
    return as_rgb(image, background) if array is None else array


def native(array: np.ndarray) -> np.ndarray:
    """Return an array in the order of bytes of this machine, which torch needs, and in memory of its own."""
    return np.array(array, array.dtype.newbyteorder("="))


def to_pixels(image: Tensor) -> Tensor:
    """Return an image [H, W] or [C, H, W] as a tensor [C, H, W]: uint8 as it is, all else float32.

    Raises:
        ValueError: another shape or type, integers of more than 16 bits, or numbers that are not finite.
    """
    if image.ndim not in (2, 3) or not image.numel():
        raise ValueError(f"an image is [H, W] or [C, H, W], not {list(image.shape)}")
    image = image[None] if image.ndim == 2 else image
    if image.dtype == torch.uint8:
        return image
    if image.is_floating_point():
        if not image.isfinite().all():
            raise ValueError("it has pixels that are no finite numbers: replace them before")
        return image.float()
    if image.dtype not in LARGEST:
        raise ValueError(f"pixels are floats, or integers of 8 or 16 bits, not {image.dtype}")
    if image.dtype in WIDE:
        in_range(image, LARGEST[image.dtype])
    return image.float() / LARGEST[image.dtype]


def is_image(image: Any) -> bool:
    """Return whether an object is of a type that `as_tensor` takes."""
    return isinstance(image, Image.Image | np.ndarray | Tensor)


def as_tensor(image: Any, channels: int, background: Sequence[int] = BACKGROUND) -> Tensor:
    """Return an image as a tensor [C, H, W]: uint8 of 8 bits, else float32, as `to_pixels` scales it.

    One channel is repeated for a model of three. Three of more than 8 bits are made grey for a model of one.

    Args:
        image: a PIL image, an array or a tensor.
        channels: number of channels of the model.
        background: colour beneath transparent pixels, 0 to 255.

    Raises:
        ValueError: what is no image, see `to_pixels`.
    """
    if isinstance(image, Image.Image):
        array = array_of(image, background)
        if array is None:
            from torchvision.transforms import v2

            rgb = as_rgb(image, background)
            pixels: Tensor = v2.functional.pil_to_tensor(rgb.convert("L") if channels == 1 else rgb)
            return pixels
        image = array
    pixels = to_pixels(torch.from_numpy(native(image)) if isinstance(image, np.ndarray) else image)
    if (len(pixels), channels) == (1, 3):
        return pixels.expand(3, -1, -1)
    if (len(pixels), channels) == (3, 1) and pixels.is_floating_point():
        return torch.tensordot(torch.tensor(LUMINANCE), pixels, 1)[None]
    return pixels


def open_picture(path: str, background: Sequence[int] = BACKGROUND) -> Image.Image:
    """Return a file as an RGB picture to look at: numbers of more bits or channels as grey levels, by `as_picture`.

    Raises:
        OSError: a file that cannot be read.
    """
    image = read_image(path, background)
    if isinstance(image, Image.Image):
        return image
    return Image.fromarray(as_picture(as_tensor(image, 3)))


def as_picture(pixels: Tensor) -> np.ndarray:
    """Return pixels [C, H, W] as a picture to look at, uint8 [H, W, C] with one or three channels.

    Other numbers of channels are averaged to grey. Floats are stretched from their least to their largest value.
    """
    levels = pixels if len(pixels) in (1, 3) else pixels.float().mean(0).expand(3, -1, -1)
    if levels.dtype == torch.uint8:
        return levels.permute(1, 2, 0).numpy()
    least, most = levels.min(), levels.max()
    levels = (levels - least) / (most - least).clamp(min=torch.finfo(levels.dtype).tiny) * 255
    return levels.round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
