"""Table and figure of `eval latency`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.plotting.accuracy import label_rows
from eval.plotting.axes import legend_above, plain_logarithm
from eval.plotting.style import GREY, line_styles, new_figure
from eval.report import Row

NAMES = "encoding"  # the column that has labels


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows as they are."""
    return list(rows)


def plot(rows: Sequence[Row]) -> Figure:
    """Draw both ratios for each encoding as dots, on a logarithmic axis."""
    figure = new_figure(width=5.0, height=1.0 + 0.18 * len(rows))
    axis = figure.subplots()
    columns = {"step to rope": "training step", "inference to rope": "folded inference"}
    for (column, label), style in zip(columns.items(), line_styles(list(columns)).values(), strict=True):
        axis.plot([row[column] for row in rows], range(len(rows)), label=label, **{**style, "linestyle": "none"})
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    label_rows(axis, [row["encoding"] for row in rows])
    axis.set(xlabel="time relative to RoPE, median of the rounds")
    if max(row[column] for row in rows for column in columns) > 3:  # else a logarithmic axis would have one tick
        axis.set_xscale("log")
        plain_logarithm(axis.xaxis)
    legend_above(figure)
    return figure
