"""Table and figure of `eval latency`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import label_rows
from eval.plotting.axes import legend_above, note_below
from eval.plotting.style import GREY, line_styles, new_figure
from eval.report import Row

COLUMNS = {"step to rope": "training step", "inference to rope": "folded inference"}


def plot(rows: Sequence[Row]) -> Figure:
    """Draw both ratios for each encoding as dots, one above the other, with outliers as numbers at the edge."""
    figure = new_figure(width=5.0, height=1.0 + 0.2 * len(rows))
    axis = figure.subplots()
    edge = edge_of([row[column] for row in rows for column in COLUMNS])
    for (column, label), style, up in zip(COLUMNS.items(), line_styles(list(COLUMNS)).values(), (-1, 1), strict=True):
        places = [(row[column], height + 0.17 * up) for height, row in enumerate(rows)]
        shown = [(value, height) for value, height in places if value <= edge]
        axis.plot(*zip(*shown, strict=True), label=label, **{**style, "linestyle": "none"})
        for value, height in (place for place in places if place[0] > edge):
            text = {"ha": "right", "va": "center", "fontsize": 7, "color": style["color"]}
            axis.text(0.99, height, f"{value:.3g} →", transform=axis.get_yaxis_transform(), **text)
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    axis.margins(x=0.08)
    label_rows(axis, [row["encoding"] for row in rows])
    axis.set(xlabel="time relative to RoPE")
    legend_above(figure)
    beyond = "; numbers with an arrow are beyond the axis" if axis.texts else ""
    note_below(figure, f"medians of the rounds{beyond}")
    return figure


def edge_of(values: Sequence[float]) -> float:
    """Return the end of an axis: twice the median if at most one value in ten is above it, else the maximum."""
    far = 2 * median(values)
    return far if sum(value > far for value in values) <= len(values) / 10 else max(values)


SHOWN = Shown(plot, names=("encoding",))
