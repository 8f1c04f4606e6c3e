"""Image files as people have them: kinds of pixels, transparency, animations, odd EXIF, and extreme proportions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

GREY = np.tile(np.linspace(0, 255, 24).round().astype(np.uint8), (20, 1))  # [20, 24], dark to light


def exif(tags: list[tuple[int, int, int, bytes]]) -> bytes:
    """Return an EXIF block of raw tags, each (number, type, count, four bytes of value or offset)."""
    body = b"".join(struct.pack("<HHI", number, kind, count) + value for number, kind, count, value in tags)
    rationals = struct.pack("<iiII", 1, -3, 5, 0)  # -1/3 and 5/0, where the offsets of `ODD` point to
    header = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags))
    return b"Exif\0\0" + header + body + struct.pack("<I", 0) + rationals


def odd_exif(orientation: int) -> bytes:
    """Return EXIF with an orientation among tags of wrong types, and with denominators that are negative or zero."""
    end = 8 + 2 + 12 * 6 + 4  # of the tags, within the block
    return exif(
        [
            (0x0112, 3, 1, struct.pack("<HH", orientation, 0)),
            (0x011A, 10, 1, struct.pack("<I", end)),  # resolution: signed, -1/3
            (0x011B, 5, 1, struct.pack("<I", end + 8)),  # resolution: 5/0
            (0x0131, 3, 1, b"\x07\0\0\0"),  # software: a number in place of text
            (0x0132, 7, 4, b"\xff\xfe\0\1"),  # date: bytes
            (0x8769, 2, 1, b"x\0\0\0"),  # place of more tags: text
        ]
    )


def write_tiff(path: Path, bits: int, signed: bool = False, negative: bool = False) -> None:
    """Write a grey TIFF of 8, 12 or 16 bits a sample, which Pillow cannot write; a negative one has 0 for white."""
    height, width = GREY.shape
    white = 32767 if signed else 2**bits - 1
    values = GREY.astype(np.int64) * white // 255
    values = white - values if negative else values
    if bits == 12:
        pairs = values.reshape(height, -1, 2)
        packed = np.stack([pairs[..., 0] >> 4, (pairs[..., 0] & 15) << 4 | pairs[..., 1] >> 8, pairs[..., 1] & 255], -1)
        data = packed.astype(np.uint8).tobytes()
    else:
        data = values.astype("u1" if bits == 8 else "<u2").tobytes()
    tags = [
        (256, width),
        (257, height),
        (258, bits),
        (259, 1),
        (262, 0 if negative else 1),
        (273, 8 + 2 + 12 * 10 + 4),
        (277, 1),
        (278, height),
        (279, len(data)),
        (339, 2 if signed else 1),
    ]
    body = b"".join(struct.pack("<HHII", number, 4, 1, value) for number, value in tags)
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + body + struct.pack("<I", 0) + data)


def grey_image(mode: str) -> Image.Image:
    """Return the grey ramp in a mode of Pillow."""
    image = Image.fromarray(GREY)
    if mode == "I;16":
        return Image.fromarray(GREY.astype(np.uint16) * 257)
    if mode == "I":
        return Image.fromarray(GREY.astype(np.int32) * 257)
    return image.convert("RGB").convert(mode) if mode in ("CMYK", "YCbCr") else image.convert(mode)


def animated(path: Path) -> None:
    """Write the ramp and two other frames."""
    others = [Image.fromarray(255 - GREY), Image.new("L", (24, 20), 90)]
    options = {"lossless": True} if path.suffix == ".webp" else {}
    Image.fromarray(GREY).convert("RGB").save(
        path, save_all=True, append_images=[x.convert("RGB") for x in others], duration=50, **options
    )


RIGHT: dict[str, Callable[[Path], None]] = {
    "1-bit.png": lambda path: Image.fromarray(GREY > 127).save(path),
    "1-bit.tiff": lambda path: Image.fromarray(GREY > 127).save(path),
    "grey.jpg": lambda path: grey_image("L").save(path, quality=95),
    "16-bit.png": lambda path: grey_image("I;16").save(path),
    "16-bit.tiff": lambda path: grey_image("I;16").save(path),
    "32-bit-of-16.tiff": lambda path: grey_image("I").save(path),
    "12-bit.tiff": lambda path: write_tiff(path, 12),
    **{f"negative-{bits}-bit.tiff": partial(write_tiff, bits=bits, negative=True) for bits in (8, 16)},
    "cmyk.jpg": lambda path: grey_image("CMYK").save(path, quality=95),
    "cmyk.tiff": lambda path: grey_image("CMYK").save(path),
    # Compressed, since Pillow before 13 cannot read back what it writes otherwise.
    "ycbcr.tiff": lambda path: grey_image("YCbCr").save(path, compression="tiff_lzw"),
    "grey-alpha.png": lambda path: grey_image("LA").save(path),
    "colour-alpha.webp": lambda path: grey_image("RGBA").save(path, lossless=True),
    "palette.png": lambda path: grey_image("P").save(path),
    "palette-transparent.png": lambda path: grey_image("L").convert("P").save(path, transparency=bytes([255] * 256)),
    "animated.gif": animated,
    "animated.webp": animated,
    "animated.png": animated,
    "odd-exif.jpg": lambda path: grey_image("L").save(path, quality=95, exif=odd_exif(1)),
    "odd-exif-turned.jpg": lambda path: (
        grey_image("L").transpose(Image.Transpose.ROTATE_180).save(path, quality=95, exif=odd_exif(3))
    ),
    "odd-exif.png": lambda path: grey_image("L").save(path, exif=odd_exif(1)),
    "odd-exif.webp": lambda path: grey_image("RGB").save(path, lossless=True, exif=odd_exif(1)),
    "no-exif.jpg": lambda path: grey_image("L").save(path, quality=95, exif=b"Exif\0\0nothing like it"),
}
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "float.tiff": (lambda path: Image.fromarray(GREY.astype(np.float32)).save(path), "floating-point pixels"),
    "32-bit.tiff": (lambda path: Image.fromarray(GREY.astype(np.int32) * 10**6).save(path), "have no range"),
    "negative.tiff": (lambda path: Image.fromarray(GREY.astype(np.int32) - 9).save(path), "have no range"),
    "signed-16-bit.tiff": (lambda path: write_tiff(path, 16, signed=True), "signed 16-bit pixels"),
    "cut-off.png": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40)), "identify"),
    "text.jpg": (lambda path: path.write_text("no image"), "cannot identify"),
}
# Of these the ones that are numbers without a range in 8 bits, which training and prediction read.
NUMBERS = {"float.tiff", "signed-16-bit.tiff"}


def write_corpus(folder: Path) -> list[Path]:
    """Write all files that are read right, and two of extreme proportions, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in RIGHT.items():
        write(folder / name)
    Image.new("L", (40_000, 4), 90).save(folder / "wide.png")
    Image.new("RGB", (4, 40_000), (90, 10, 10)).save(folder / "tall.jpg")
    return sorted(folder.iterdir())
