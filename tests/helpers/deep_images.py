"""Images of more than 8 bits: PNG files of 16 bits a channel, which Pillow cannot write, and folders of arrays."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def write_png(path: Path, pixels: np.ndarray, exif: bytes = b"") -> None:
    """Write a PNG of 16 bits: uint16 [C, H, W] of grey, grey and opacity, colours, or colours and opacity."""
    channels, height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.transpose(1, 2, 0).astype(">u2"))
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    tags = chunk(b"eXIf", exif) if exif else b""
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + tags + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def write_folder(
    root: Path, ending: str, draw: Callable[[np.random.Generator, int], np.ndarray], count: int = 8
) -> None:
    """Write arrays [C, H, W] of two classes into root/train and root/test, as .npy files or PNG files of 16 bits."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(2):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                path, array = folder / f"{number}{ending}", draw(rng, label)
                np.save(path, array) if ending == ".npy" else write_png(path, array)


def write_tiff(path: Path, pixels: np.ndarray, separate: bool) -> None:
    """Write a TIFF of colours, uint16 [3, H, W], side by side or in separate planes."""
    _, height, width = pixels.shape
    data = (pixels if separate else pixels.transpose(1, 2, 0)).astype("<u2").tobytes()
    strips, end = 3 if separate else 1, 8 + 2 + 12 * 10 + 4
    starts, counts = end + 6, end + 6 + 4 * strips
    tags = [(256, 1, width), (257, 1, height), (258, 3, end), (259, 1, 1), (262, 1, 2)]
    tags += [(273, strips, starts if separate else counts + 4), (277, 1, 3), (278, 1, height)]
    tags += [(279, strips, counts if separate else len(data)), (284, 1, 2 if separate else 1)]
    body = b"".join(struct.pack("<HHII", number, 3 if number == 258 else 4, n, value) for number, n, value in tags)
    first, share = counts + 4 * strips, len(data) // strips
    places = [first + share * strip for strip in range(strips)] + [share] * strips
    values = struct.pack(f"<3H{2 * strips}I", 16, 16, 16, *places)
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + body + bytes(4) + values + data)
