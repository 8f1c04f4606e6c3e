"""Images side by side with a few words under each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from performer_string.images.reading import open_image

PIXELS = 320  # of the longer side of a file's picture at most


@dataclass(frozen=True)
class Tile:
    """One image of a contact sheet.

    Attributes:
        picture: [H, W] or [H, W, 3], uint8; None where there is none to show.
        title: the lines beneath it, of some 20 letters each.
    """

    picture: np.ndarray[Any, Any] | None
    title: str


def picture_of(path: str) -> np.ndarray[Any, Any] | None:
    """Return a small picture of an image file, [H, W, 3]; None where it cannot be read."""
    if not Path(path).is_file():
        return None
    try:
        image = open_image(path)
    except OSError:
        return None
    image.thumbnail((PIXELS, PIXELS), Image.Resampling.LANCZOS)
    return np.asarray(image)


def shorten(text: str, letters: int = 20) -> str:
    """Return a text of so many letters at most, with its middle left out."""
    if len(text) <= letters:
        return text
    end = (letters - 1) // 2
    return f"{text[: letters - 1 - end]}…{text[-end:]}"


def contact_sheet(tiles: Sequence[Tile], columns: int = 6, heading: str = "", empty: str = "no images") -> Figure:
    """Draw images in rows.

    Args:
        tiles: the images.
        columns: how many stand beside each other.
        heading: a line above all.
        empty: what is written where there are no images.
    """
    columns = max(1, min(columns, len(tiles)))
    rows, lines = max(1, math.ceil(len(tiles) / columns)), max([1, *(1 + tile.title.count("\n") for tile in tiles)])
    width = max(1.45 * columns, 0.07 * len(heading), 2.5)
    figure = Figure(figsize=(width, (1.4 + 0.15 * lines) * rows + (0.35 if heading else 0.0)), layout="constrained")
    for number, axis in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axis.set_axis_off()
        if number >= len(tiles):
            if not tiles:
                axis.text(0.5, 0.5, empty, ha="center", va="center", transform=axis.transAxes)
            continue
        tile = tiles[number]
        if tile.picture is None:
            axis.text(0.5, 0.5, "not found", ha="center", va="center", transform=axis.transAxes, fontsize=7)
        else:
            axis.imshow(tile.picture, cmap="gray", vmin=0, vmax=255)
        # Beneath the picture, so that rows do not depend on its proportions.
        axis.text(0.5, -0.03, tile.title, ha="center", va="top", transform=axis.transAxes, fontsize=7)
    if heading:
        figure.suptitle(heading, fontsize=9)
    return figure
