"""Grids of images with a short text below each."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Rectangle
from PIL import Image

from eval.plotting.axes import note_below
from eval.plotting.style import VERMILLION, new_figure, width_or
from performer_string.images.reading import VIDEO_ENDINGS
from train.utils.output import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TILE, GAP, LINE, LETTER = 1.35, 0.25, 0.125, 0.075  # in inches: image, gap, line of text, letter
TEXT = 7  # font size in points
PIXELS = 320  # longest side of a file's picture
FADED = 0.55  # opacity of the white outside a frame


@dataclass(frozen=True)
class Tile:
    """One image of a contact sheet.

    Attributes:
        picture: uint8 image, [H, W] or [H, W, 3]; None where there is none.
        title: lines below the image, each shortened by `fit`.
        frame: central shares of height and width to frame; None for no frame.
    """

    picture: np.ndarray[Any, Any] | None
    title: str
    frame: tuple[float, float] | None = None


def open_frame(path: str) -> Image.Image:
    """Return a frame near the middle of a video file; an OSError where there is none."""
    import av  # an optional package

    try:
        with av.open(path) as container:
            if container.duration:
                container.seek(container.duration // 2)
            frame = next(container.decode(video=0))
            image: Image.Image = frame.to_image().rotate(frame.rotation, expand=True)
            return image
    except (av.error.FFmpegError, StopIteration) as error:
        raise OSError(f"{error}") from error


def thumbnail_of(path: str) -> tuple[np.ndarray[Any, Any] | None, tuple[int, int]]:
    """Return a thumbnail of an image file, [H, W, 3] (None for unreadable files), and the image's height and width.

    That of a video is a frame near its middle.
    """
    from performer_string.images.deep import open_picture  # it imports torch

    try:
        image = open_frame(path) if Path(path).suffix.lower() in VIDEO_ENDINGS else open_picture(path)
    except (OSError, ValueError, ImportError):
        return None, (0, 0)
    size = image.height, image.width
    image.thumbnail((PIXELS, PIXELS), Image.Resampling.LANCZOS)
    return np.asarray(image), size


def names_apart(paths: Sequence[str]) -> list[str]:
    """Return distinct names of files, with as many parent folders as are needed."""
    parts = {path: Path(path).parts for path in paths}

    def name(path: str) -> str:
        for length in range(1, len(parts[path])):
            end = parts[path][-length:]
            if sum(other[-length:] == end for other in parts.values()) == 1:
                return "/".join(end)
        return path

    return [name(path) for path in paths]


def shorten(text: str, letters: int = 20) -> str:
    """Return a printable text of at most `letters` letters, shortened in the middle."""
    text = printable(text)  # a file name may contain bytes that are no text
    if len(text) <= letters:
        return text
    end = (letters - 1) // 2
    return f"{text[: letters - 1 - end]}…{text[-end:]}"


def fit(text: str, before: str = "", after: str = "", room: float = TILE + 0.8 * GAP) -> str:
    """Return a line of a caption, with its text shortened in the middle where it is too wide.

    Args:
        text: text that may be shortened.
        before, after: text around it in the same line, which is never shortened.
        room: width of the line in inches.
    """
    whole = printable(text)
    lines = (f"{before}{shorten(text, letters)}{after}" for letters in range(len(whole), 3, -1))
    return next((line for line in lines if width_of(line) <= room), f"{before}{shorten(text, 3)}{after}")


def width_of(text: str) -> float:
    """Return the width of a line of a caption in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=TEXT), ismath=False)[0]) / 72


def draw_frame(axis: Axes, shape: Sequence[int], frame: tuple[float, float]) -> None:
    """Frame the centre of a picture, and fade the rest."""
    height, width = shape[0] * frame[0], shape[1] * frame[1]
    top, left = (shape[0] - height) / 2 - 0.5, (shape[1] - width) / 2 - 0.5
    around: dict[str, Any] = {"color": "white", "alpha": FADED, "linewidth": 0}
    axis.axhspan(-0.5, top, **around)
    axis.axhspan(top + height, shape[0] - 0.5, **around)
    for x in (-0.5, left + width):
        axis.add_patch(Rectangle((x, top), left + 0.5, height, **around))
    axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=VERMILLION, linewidth=1))


def contact_sheet(tiles: Sequence[Tile], columns: int = 6, heading: str = "", note: str = "") -> Figure:
    """Draw images in a grid.

    Args:
        tiles: one or more images.
        columns: number of columns, unless the user has chosen a width.
        heading: line above the images.
        note: line below the images, for the caption.
    """
    columns = max(1, min(int(width_or(columns * (TILE + GAP)) / (TILE + GAP)), len(tiles)))
    width = max(width_or(max(columns * (TILE + GAP), 2.5)), TILE + GAP)
    headings = textwrap.wrap(heading, int(width / LETTER))
    rows, lines = math.ceil(len(tiles) / columns), max(1 + tile.title.count("\n") for tile in tiles)
    around = 0.1 + 0.15 * len(headings) + (2 * LINE if note else 0)
    figure = new_figure(width, rows * (TILE + LINE * (lines + 1)) + around)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set(xticks=[], yticks=[], frame_on=False, anchor="S")  # texts at one height, also below wide pictures
    for axis, tile in zip(axes, tiles, strict=False):
        axis.set_xlabel(tile.title, fontsize=TEXT, parse_math=False)
        if tile.picture is None:
            axis.text(0.5, 0.5, "not found", ha="center", va="center", transform=axis.transAxes, fontsize=7)
        else:
            axis.imshow(tile.picture, cmap="gray", vmin=0, vmax=255)
            if tile.frame:
                draw_frame(axis, tile.picture.shape, tile.frame)
    if headings:
        figure.suptitle("\n".join(headings), fontsize=9, parse_math=False)
    if note:
        note_below(figure, note)
    return figure
