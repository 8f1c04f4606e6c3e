"""Table and figure of `eval recipes`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import label_rows
from eval.plotting.axes import legend_above
from eval.plotting.style import GREY, line_styles, new_figure
from eval.report import Row
from eval.speed.steps_report import PLAIN as PLAIN

HOLLOW = {"linestyle": "none", "markerfacecolor": "none"}  # equal values of two models stay visible
OWN, PERFORMER = "recipe", "performer-pytorch"  # the models that are timed for each recipe


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the times relative to the plain ViT as dots; a recipe without a plain ViT to compare with is left out."""
    rows = [row for row in rows if row["to plain"] != ""]
    figure = new_figure(width=5.0, height=1.1 + 0.2 * len(rows))
    axis = figure.subplots()
    columns = {"the recipe": "to plain", "with performer-pytorch": f"{PERFORMER} to plain"}
    for (label, column), style in zip(columns.items(), line_styles(list(columns)).values(), strict=True):
        points = [(row[column], place) for place, row in enumerate(rows) if row[column] != ""]
        axis.plot(*zip(*points, strict=True), **{**style, **HOLLOW}, label=label) if points else None
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    label_rows(axis, [row["recipe"] for row in rows])
    axis.set(xlabel="training step over a plain ViT's (median)")
    legend_above(figure)
    return figure


SHOWN = Shown(plot, names=("recipe",))
