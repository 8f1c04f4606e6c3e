"""Overlapping lines: lower ones are drawn wide and pale, so that each is visible, also in grey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

NEAR = 0.012  # share of a panel's height, about the width of a line
WIDER, LARGER, PALE = 2.4, 3.0, 0.4  # widening of line and marker in points for each line above, and the opacity


def widen_hidden_lines(axis: Axes) -> None:
    """Widen each line of a panel that later lines hide.

    Args:
        axis: axes whose limits and scales are set. Only unshifted lines with markers and at least two points count.
    """
    marked = [line for line in axis.lines if line.get_marker() not in ("None", "")]
    lines = [line for line in marked if len(points_of(line)) > 1 and line.get_transform() == axis.transData]
    for number, line in enumerate(lines):
        above = sum(overlap(axis, line, other) for other in lines[number + 1 :])
        if above:
            line.set_linewidth(line.get_linewidth() + WIDER * above)
            line.set_markersize(line.get_markersize() + LARGER * above)
            line.set_alpha(PALE)


def overlap(axis: Axes, one: Line2D, other: Line2D) -> bool:
    """Return whether two lines coincide at all their common x values, of which there are at least two."""
    heights = []
    for line in (one, other):
        points = axis.transAxes.inverted().transform(axis.transData.transform(points_of(line)))
        heights.append(dict(zip(points_of(line)[:, 0], points[:, 1], strict=True)))
    common = heights[0].keys() & heights[1].keys()
    return len(common) > 1 and all(abs(heights[0][x] - heights[1][x]) < NEAR for x in common)


def points_of(line: Line2D) -> np.ndarray:
    """Return the points of a line in data coordinates, [n, 2]."""
    return np.asarray(line.get_xydata(), float)
