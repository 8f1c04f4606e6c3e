"""Layout of a figure of attention maps: columns in blocks, and the titles above them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.plotting.contact_sheet import TEXT, fit, shorten, width_of
from eval.plotting.style import placed_figure, width_or
from train.utils.output import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL, GAP, LEFT, RIGHT = 1.3, 0.08, 0.25, 0.75  # in inches: height of a picture, gap, and margins
HEADING, LINE = 0.24, 0.12  # in inches: height of the heading, and of a line of a title
ACROSS, NARROWEST = 8, 0.5  # most columns of a block, and least width of a column in inches, for its title
UNBROKEN = "\N{NO-BREAK SPACE}"
MOST_LINES = 3  # most lines of a part of a title
Title = list[tuple[str, str, str]]  # parts, each as (text that may be shortened, text before it, text after it)


def in_blocks(aspects: Sequence[float], together: int = 1) -> list[Sequence[float]]:
    """Split columns into equal blocks that are drawn one below the other, where they do not fit side by side.

    Args:
        aspects: width over height of each column's pictures.
        together: number of columns of each model, which stay in one block where they fit.

    Returns:
        Width over height of each column in each block; columns of tall pictures are widened for the titles.
    """
    aspects = [max(aspect, NARROWEST / CELL) for aspect in aspects]
    for most in range(ACROSS, 0, -1):
        unit = together if together <= most else 1
        units = math.ceil(len(aspects) / unit)
        across = unit * math.ceil(units / math.ceil(units / (most // unit)))
        blocks: list[Sequence[float]] = [aspects[start : start + across] for start in range(0, len(aspects), across)]
        if min(column_widths(blocks)) > NARROWEST - 1e-6:
            break
    return blocks


def figure_width(blocks: Sequence[Sequence[float]]) -> float:
    """Return the width of the figure in inches, from the widths over heights of the columns or as the user chose."""
    return width_or(max(CELL * sum(block) + GAP * (len(block) - 1) for block in blocks) + LEFT + RIGHT)


def picture_height(blocks: Sequence[Sequence[float]]) -> float:
    """Return the height of each picture in inches."""
    width = figure_width(blocks) - LEFT - RIGHT
    return max(0.2, min((width - GAP * (len(block) - 1)) / sum(block) for block in blocks))


def column_widths(blocks: Sequence[Sequence[float]]) -> list[float]:
    """Return the width of each column in inches."""
    tall = picture_height(blocks)
    return [tall * aspect for block in blocks for aspect in block]


def wrapped(text: str, before: str, after: str, room: float) -> list[str]:
    """Return a part of a title in lines that fit, broken at spaces and hyphens, or shortened in the middle.

    Args:
        text: text, shortened where it takes more than `MOST_LINES` lines.
        before, after: text around it, which is never shortened.
        room: width of a line in inches.
    """
    whole = printable(text)
    for letters in range(len(whole), 3, -1):
        line = f"{before}{shorten(whole, letters)}{after}".replace(" %", f"{UNBROKEN}%")
        lines = [""]
        for word in re.findall(r"[^ _-]*[ _-]+|[^ _-]+", line):
            if width_of((lines[-1] + word).rstrip()) > room:
                lines.append("")
            lines[-1] += word
        lines = [line.rstrip(" ").replace(UNBROKEN, " ") for line in lines if line]
        if len(lines) <= MOST_LINES and all(width_of(line) <= room for line in lines):
            return lines
    return [fit(text, before, after, room)]


def wrapped_alike(titles: Sequence[Title], rooms: Sequence[float]) -> list[list[str]]:
    """Return the lines of each title, padded so that corresponding parts are at the same height.

    Args:
        titles: titles of the columns.
        rooms: width of each column in inches.
    """
    parts = [[wrapped(*part, room + GAP / 2) for part in title] for title, room in zip(titles, rooms, strict=True)]
    most = max(map(len, parts))
    parts = [[[""]] * (most - len(title)) + title for title in parts]
    heights = [max(map(len, beside)) for beside in zip(*parts, strict=True)]
    return [
        [line for part, height in zip(title, heights, strict=True) for line in [*part, *[""] * (height - len(part))]]
        for title in parts
    ]


def write_title(axis: Axes, lines: Sequence[str]) -> None:
    """Write the lines of a title above a column."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center"}
    place |= {"fontsize": TEXT, "parse_math": False}
    for number, line in enumerate(reversed(lines)):
        if line:
            axis.annotate(line, (0.5, 1), (0, 72 * (0.04 + number * LINE)), **place)


def picture_grid(
    blocks: Sequence[Sequence[float]], aspects: Sequence[float], rows: int, above: float, below: float
) -> tuple[Figure, Any]:
    """Return a figure with blocks of pictures of equal height, and room for titles, row names and a colour bar.

    Args:
        blocks: width over height of each column in each block, from `in_blocks`.
        aspects: width over height of each column's pictures.
        rows: number of rows in each block.
        above: room above each block in inches.
        below: room below the last block in inches.

    Returns:
        The figure, and an array of its axes, [rows, columns].
    """
    width, tall = figure_width(blocks), picture_height(blocks)
    step = above + rows * (tall + GAP)  # from block to block
    height = HEADING + len(blocks) * step - GAP + below
    figure, axes = placed_figure(width, height), np.empty((rows, len(aspects)), dtype=object)
    column = 0
    for number, block in enumerate(blocks):
        x = LEFT
        for slot in block:
            wide = tall * aspects[column]
            for row in range(rows):
                y = height - HEADING - number * step - above - row * (tall + GAP) - tall
                box = ((x + (tall * slot - wide) / 2) / width, y / height, wide / width, tall / height)
                axes[row, column] = figure.add_axes(box)
                axes[row, column].set_axis_off()
            x += tall * slot + GAP
            column += 1
    return figure, axes
