"""Table and figure of `eval steps`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import label_rows
from eval.plotting.axes import legend_above
from eval.plotting.style import GREY, line_styles, new_figure
from eval.report import Row, select, unique

PLAIN = "plain ViT"  # model that others are compared with
FORMER = "circulant-string"  # encoding of all other models in files without that column


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the ratio of each model as a dot, for each of its encodings."""
    rows = [{"encoding": "absolute" if row["model"] == PLAIN else FORMER, **row} for row in rows]
    models, encodings = unique(rows, "model"), unique(rows, "encoding")
    figure = new_figure(width=5.0, height=1.0 + 0.2 * len(models))
    axis = figure.subplots()
    for encoding, style in line_styles(encodings).items():
        dots = select(rows, encoding=encoding)
        places = [models.index(row["model"]) for row in dots]
        axis.plot([row["to plain"] for row in dots], places, **{**style, "linestyle": "none"}, label=encoding)
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    label_rows(axis, models)
    legend_above(figure)
    axis.set(xlabel="training step over a plain ViT's (median)")
    return figure


SHOWN = Shown(plot)
