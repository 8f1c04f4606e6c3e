"""Grey pictures beneath attention maps, kept as PNG files so that a figure can be redrawn from its CSV file.

The files are in the folder `pictures` beside the CSV file. A file's name contains a hash of the picture, so that models
with different images have different files, and several CSV files may share the folder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from eval.report import Row
from performer_string.images.reading import open_image
from performer_string.utils.files import write_aside
from train.data.sizes import Size

FOLDER = "pictures"
Picture = np.ndarray[Any, Any]
_PICTURES: dict[str, Picture] = {}  # uint8 [H, W], by the names of their files


def keep_picture(image: Picture, size: Size) -> str:
    """Keep the grey picture of an image in memory.

    Returns:
        Name of the picture's file.
    """
    picture = np.rint(image.mean(-1)).astype(np.uint8)
    name = f"image-{size}-{hashlib.sha256(picture.tobytes()).hexdigest()[:8]}.png"
    _PICTURES[name] = picture
    return name


def picture_of_file(path: str, size: Size) -> Picture:
    """Return the image of a file, resized to cover a size and cropped at its centre, [H, W, C]."""
    height, width = size
    return np.asarray(ImageOps.fit(open_image(path), (width, height), Image.Resampling.BILINEAR))


def write_pictures(rows: Sequence[Row], csv: Path) -> list[Path]:
    """Write the pictures of rows beside their CSV file, and return the files."""
    paths = [csv.parent / FOLDER / name for name in names_of_pictures(rows)]
    for path in paths:
        with write_aside(path) as partial:
            Image.fromarray(_PICTURES[path.name]).save(partial)
    return paths


def read_pictures(rows: Sequence[Row], csv: Path) -> None:
    """Read the pictures of rows from their files beside a CSV file into memory, and report missing files."""
    for name in names_of_pictures(rows):
        path = csv.parent / FOLDER / name
        if path.is_file():
            _PICTURES[name] = np.asarray(Image.open(path).convert("L"))
        elif name not in _PICTURES:
            sys.stderr.write(f"{path} is missing: without it the figure may lack its image.\n")


def names_of_pictures(rows: Iterable[Row]) -> list[str]:
    """Return the distinct names of the pictures' files; none for rows of older results."""
    return list(dict.fromkeys(row["picture"] for row in rows if row.get("picture")))


def picture_of(row: Row) -> Picture | None:
    """Return the grey picture beneath the map of a row, [H, W] in [0, 1]; None where its file is missing."""
    name, file, size = row.get("picture", ""), str(row["image"]), row["resolution"]
    if name not in _PICTURES:
        if not Path(file).is_file():
            return None
        name = keep_picture(picture_of_file(file, size), size)
    picture: Picture = _PICTURES[name] / 255
    return picture
