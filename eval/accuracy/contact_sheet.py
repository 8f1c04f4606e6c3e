"""Images side by side with a few words under each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from eval.plotting.style import placed_figure, width_or
from performer_string.images.reading import open_image
from train.command_line import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILE, GAP, LINE, LETTER = 1.35, 0.25, 0.125, 0.075  # inches: a picture, between two, a line of text, a letter
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
    """Return a text that can be drawn, of so many letters at most, with its middle left out."""
    text = printable(text)  # the name of a file may hold bytes that are no text
    if len(text) <= letters:
        return text
    end = (letters - 1) // 2
    return f"{text[: letters - 1 - end]}…{text[-end:]}"


def contact_sheet(tiles: Sequence[Tile], columns: int = 6, heading: str = "", empty: str = "no images") -> Figure:
    """Draw images in rows.

    Args:
        tiles: the images.
        columns: how many stand beside each other, unless the user has chosen a width.
        heading: a line above all.
        empty: what is written where there are no images.
    """
    columns = max(1, min(int(width_or(columns * (TILE + GAP) + GAP) / (TILE + GAP)), len(tiles)))
    rows, lines = math.ceil(len(tiles) / columns), max([0, *(1 + tile.title.count("\n") for tile in tiles)])
    row = TILE + LINE * (lines + 1)  # inches
    above = 0.35 if heading else 0.1
    width, height = max(columns * (TILE + GAP) + GAP, LETTER * len(heading), 2.5), above + max(rows * row, 0.5)
    figure = placed_figure(width, height)
    left = (width - columns * (TILE + GAP) + GAP) / 2
    for number, tile in enumerate(tiles):
        i, j = divmod(number, columns)
        x, y = left + j * (TILE + GAP), height - above - i * row - TILE
        axis = figure.add_axes((x / width, y / height, TILE / width, TILE / height))
        axis.set_axis_off()
        if tile.picture is None:
            axis.text(0.5, 0.5, "not found", ha="center", va="center", transform=axis.transAxes, fontsize=7)
        else:
            axis.imshow(tile.picture, cmap="gray", vmin=0, vmax=255)
        middle = (x + TILE / 2) / width
        figure.text(middle, (y - 0.04) / height, tile.title, ha="center", va="top", fontsize=7, linespacing=1.15)
    if not tiles:
        figure.text(0.5, 0.25 / height, empty, ha="center", va="center")
    if heading:
        figure.text(0.5, 1 - 0.08 / height, heading, ha="center", va="top", fontsize=9)
    return figure
