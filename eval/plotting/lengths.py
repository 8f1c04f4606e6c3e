"""Time and memory over the number of tokens, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eval.plotting.axes import count_axis, legend_above, plain_logarithm
from eval.plotting.style import line_styles, panels
from eval.report import Row, select, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES = {"ms": "milliseconds", "peak MiB": "peak memory in MiB"}
TITLES = {"ms": "time", "peak MiB": "memory"}


def length_figure(groups: Mapping[str, Sequence[Row]], column: str) -> Figure:
    """Draw time and memory over the tokens, two panels for each group; bars where there is one number of tokens.

    Args:
        groups: rows by the title of their panels.
        column: whose values have a line each.
    """
    rows = [row for group in groups.values() for row in group]
    names = unique(rows, column)
    counts = unique(rows, "tokens")
    height = 2.5 if len(counts) > 1 else 0.8 + 0.25 * len(names)
    figure, axes = panels(2 * len(groups), height=height)
    places = [(title, group, quantity) for title, group in groups.items() for quantity in QUANTITIES]
    for axis, (title, group, quantity) in zip(axes, places, strict=True):
        if len(counts) > 1:
            draw_lines(axis, group, column, quantity, line_styles(names))
            count_axis(axis, counts)
            axis.set(title=f"{title}: {TITLES[quantity]}" if title else "", ylabel=QUANTITIES[quantity], yscale="log")
            plain_logarithm(axis.yaxis)
        else:
            draw_bars(axis, group, column, quantity)
            what = f"{title}: {TITLES[quantity]}" if title else TITLES[quantity]
            axis.set(title=f"{what} at {counts[0]:,} tokens", xlabel=QUANTITIES[quantity])
    if len(counts) > 1:
        legend_above(figure)
    return figure


def draw_lines(axis: Axes, rows: Sequence[Row], column: str, quantity: str, styles: Mapping[str, Any]) -> None:
    """Draw a quantity over the tokens, a line for each name."""
    for name, style in styles.items():
        line = sorted(select(rows, **{column: name}), key=lambda row: row["tokens"])
        axis.plot([row["tokens"] for row in line], [row[quantity] for row in line], label=name, **style)


def draw_bars(axis: Axes, rows: Sequence[Row], column: str, quantity: str) -> None:
    """Draw a bar for each name, with its value."""
    bars = axis.barh([row[column] for row in rows], [row[quantity] for row in rows], height=0.6)
    axis.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
    axis.margins(x=0.15)
    axis.invert_yaxis()
