"""Table and figure of `eval steps`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.plotting.accuracy import label_rows
from eval.plotting.style import GREY, line_styles, new_figure
from eval.report import Row

NAMES = "model"  # the column that has labels
PLAIN = "plain ViT"  # the model that others are compared with


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the ratio of each model as a dot."""
    figure = new_figure(width=5.0, height=0.8 + 0.18 * len(rows))
    axis = figure.subplots()
    (style,) = line_styles(["to plain"]).values()
    axis.plot([row["to plain"] for row in rows], range(len(rows)), **{**style, "linestyle": "none"})
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    label_rows(axis, [row["model"] for row in rows])
    axis.set(xlabel="training step over a plain ViT's (median)")
    return figure
