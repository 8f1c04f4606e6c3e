"""Table and figure of `eval recipes`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.plotting.accuracy import label_rows
from eval.plotting.axes import legend_above
from eval.plotting.style import GREY, line_styles, new_figure
from eval.report import Row

NAMES = "recipe"  # the column that has labels
OWN, PLAIN, PERFORMER = "recipe", "plain ViT", "performer-pytorch"  # the models that are timed for each recipe


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows as they are."""
    return list(rows)


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the times relative to the plain ViT as dots, those of the recipe and of performer-pytorch."""
    figure = new_figure(width=5.0, height=1.1 + 0.2 * len(rows))
    axis = figure.subplots()
    columns = {"the recipe": "to plain", "with performer-pytorch": f"{PERFORMER} to plain"}
    for (label, column), style in zip(columns.items(), line_styles(list(columns)).values(), strict=True):
        points = [(row[column], place) for place, row in enumerate(rows) if row[column] != ""]
        axis.plot(*zip(*points, strict=True), **{**style, "linestyle": "none"}, label=label) if points else None
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    label_rows(axis, [row["recipe"] for row in rows])
    axis.set(xlabel="training step relative to a plain ViT, median of the rounds")
    legend_above(figure)
    return figure
