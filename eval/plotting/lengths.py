"""Time and memory over the number of tokens, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eval.plotting.axes import count_axis, legend_above, plain_logarithm
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import line_styles, panels
from eval.report import Row, select, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES = {"ms": "milliseconds", "peak MiB": "peak memory in MiB"}
MOST_VALUES = 3  # most points of a single line that are labelled with their values
TITLES = {"ms": "time", "peak MiB": "memory"}


def length_figure(groups: Mapping[str, Sequence[Row]], column: str) -> Figure:
    """Draw time and memory over the tokens, two panels for each group; bars for a single number of tokens.

    Args:
        groups: rows by the title of their panels.
        column: name of the column whose values have a line each.
    """
    rows = [row for group in groups.values() for row in group]
    names = unique(rows, column)
    counts = unique(rows, "tokens")
    alone = f"{names[0]}, " if len(names) == 1 else ""  # in the titles, instead of a legend
    height = 2.5 if len(counts) > 1 else 0.8 + 0.25 * len(names)
    figure, axes = panels(2 * len(groups), height=height)
    places = [(title, group, quantity) for title, group in groups.items() for quantity in QUANTITIES]
    for axis, (title, group, quantity) in zip(axes, places, strict=True):
        what = f"{title}: {TITLES[quantity]}" if title else TITLES[quantity]
        if len(counts) > 1:
            draw_lines(axis, group, column, quantity, line_styles(names))
            count_axis(axis, counts)
            axis.set(title=alone + what, ylabel=QUANTITIES[quantity], yscale="log")
            plain_logarithm(axis.yaxis)
            widen_hidden_lines(axis)
        else:
            draw_bars(axis, group, column, quantity)
            axis.set(title=f"{what} at {counts[0]:,} tokens", xlabel=QUANTITIES[quantity])
    if len(counts) > 1 and not alone:
        legend_above(figure)
    return figure


def draw_lines(axis: Axes, rows: Sequence[Row], column: str, quantity: str, styles: Mapping[str, Any]) -> None:
    """Draw a quantity over the tokens, with a line for each name."""
    for name, style in styles.items():
        line = sorted(select(rows, **{column: name}), key=lambda row: row["tokens"])
        axis.plot([row["tokens"] for row in line], [row[quantity] for row in line], label=name, **style)
        if len(styles) == 1 and len(line) <= MOST_VALUES:
            write_values(axis, line, quantity)


def write_values(axis: Axes, line: Sequence[Row], quantity: str) -> None:
    """Label each point of a single line with its value, on the side with more room."""
    for number, row in enumerate(line):
        side = ("left", 5) if number == 0 else ("right", -5)
        place: dict[str, Any] = {"textcoords": "offset points", "ha": side[0], "va": "center", "fontsize": 7}
        value = f"{row[quantity]:,.0f}" if row[quantity] >= 100 else f"{row[quantity]:.3g}"
        axis.annotate(value, (row["tokens"], row[quantity]), (side[1], 0), **place)


def draw_bars(axis: Axes, rows: Sequence[Row], column: str, quantity: str) -> None:
    """Draw a bar for each name, with its value."""
    bars = axis.barh([row[column] for row in rows], [row[quantity] for row in rows], height=0.6)
    axis.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
    axis.margins(x=0.15)
    axis.invert_yaxis()
