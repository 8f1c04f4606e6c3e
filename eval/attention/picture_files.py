"""Grey pictures beneath attention maps, kept as PNG files so that a figure can be redrawn from its CSV file.

The files are in the folder `pictures` beside the CSV file. A file's name contains a hash of the picture, so that models
with different images have different files, and several CSV files may share the folder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from eval.report import Row
from performer_string.utils.files import write_aside
from train.data.sizes import Size

FOLDER = "pictures"
Picture = np.ndarray[Any, Any]


def grey_picture(image: Picture) -> Picture:
    """Return the grey picture of an image [H, W, C], uint8 [H, W]."""
    return np.rint(image.mean(-1)).astype(np.uint8)


def name_of(picture: Picture, size: Size) -> str:
    """Return the name of a grey picture's file."""
    return f"image-{size}-{hashlib.sha256(picture.tobytes()).hexdigest()[:8]}.png"


def picture_of_file(path: str, size: Size) -> Picture:
    """Return the image of a file, resized to cover a size and cropped at its centre, [H, W, C]."""
    from performer_string.images.deep import open_picture  # it imports torch

    height, width = size
    return np.asarray(ImageOps.fit(open_picture(path), (width, height), Image.Resampling.BILINEAR))


def write_pictures(pictures: Mapping[str, Picture], csv: Path) -> list[Path]:
    """Write grey pictures, by the names of their files, beside a CSV file, and return the files."""
    for name, picture in pictures.items():
        with write_aside(csv.parent / FOLDER / name) as partial:
            Image.fromarray(picture).save(partial)
    return [csv.parent / FOLDER / name for name in pictures]


def place_pictures(rows: Sequence[Row], csv: Path) -> list[Row]:
    """Return the rows with the paths of their pictures beside a CSV file, and report missing files."""
    paths = {name: csv.parent / FOLDER / name for row in rows if (name := row.get("picture"))}
    for path in paths.values():
        if not path.is_file():
            sys.stderr.write(f"{path} is missing: without it the figure lacks its image.\n")
    return [{**row, "picture": str(paths.get(row.get("picture"), ""))} for row in rows]


def picture_of(row: Row) -> Picture | None:
    """Return the grey picture beneath the map of a row, [H, W] in [0, 1]; None where its file is missing."""
    path = Path(row.get("picture", ""))
    return np.asarray(Image.open(path).convert("L")) / 255 if path.is_file() else None
