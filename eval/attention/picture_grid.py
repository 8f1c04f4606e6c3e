"""Where the maps of attention stand in their figure: columns in blocks, and the titles above them."""

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

CELL, GAP, LEFT, RIGHT = 1.3, 0.08, 0.25, 0.75  # inches: height of a picture, and room around pictures
HEADING, LINE = 0.24, 0.12  # inches: above all, and a line of a title
ACROSS, NARROWEST = 8, 0.5  # columns of a block at most, and inches of one at least, for its title
UNBROKEN = "\N{NO-BREAK SPACE}"
MOST_LINES = 3  # of a part of a title
Title = list[tuple[str, str, str]]  # parts, each as what may be shortened, what stands before it and what after it


def in_blocks(aspects: Sequence[float], together: int = 1) -> list[Sequence[float]]:
    """Return columns in blocks that are drawn one below the other, of equally many where there are more than fit.

    Args:
        aspects: width over height of each column's pictures.
        together: columns of each model, which one block holds as long as so many fit.

    Returns:
        Width over height of each column; those of tall pictures are wider than these, for the titles.
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
    """Return the width of the figure in inches, by width over height of each block's columns, or as the user chose."""
    return width_or(max(CELL * sum(block) + GAP * (len(block) - 1) for block in blocks) + LEFT + RIGHT)


def picture_height(blocks: Sequence[Sequence[float]]) -> float:
    """Return the height of all pictures in inches."""
    width = figure_width(blocks) - LEFT - RIGHT
    return max(0.2, min((width - GAP * (len(block) - 1)) / sum(block) for block in blocks))


def column_widths(blocks: Sequence[Sequence[float]]) -> list[float]:
    """Return the width of each column in inches."""
    tall = picture_height(blocks)
    return [tall * aspect for block in blocks for aspect in block]


def wrapped(text: str, before: str, after: str, room: float) -> list[str]:
    """Return a part of a title in lines that fit, broken at spaces and after hyphens, else with its middle left out.

    Args:
        text: to shorten, where it takes more than `MOST_LINES`.
        before, after: around it, and never shortened.
        room: in inches.
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
    """Return the lines of each title, as many of each, with a part of a title at the height of those beside it.

    Args:
        titles: of the columns.
        rooms: the width of each column in inches.
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
    """Write the lines of a title above a column, the last one nearest to its first picture."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center"}
    place |= {"fontsize": TEXT, "parse_math": False}
    for number, line in enumerate(reversed(lines)):
        if line:
            axis.annotate(line, (0.5, 1), (0, 72 * (0.04 + number * LINE)), **place)


def picture_grid(
    blocks: Sequence[Sequence[float]], aspects: Sequence[float], rows: int, above: float, below: float
) -> tuple[Figure, Any]:
    """Return a figure with blocks of pictures of one height, and room for titles, names of rows and a colour bar.

    Args:
        blocks: as of `in_blocks`, of one block below the other.
        aspects: width over height of each column's pictures.
        rows: of a block.
        above: room above each block in inches.
        below: room below the last one in inches.

    Returns:
        The figure, and its axes, [rows, columns].
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
