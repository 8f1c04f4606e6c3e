"""Table and figure of `eval locality`, from its rows alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.columns import measure_of
from eval.evaluations import Shown
from eval.plotting.accuracy import dot_columns, group_by_model, note_of, size_panels
from eval.plotting.axes import count_axis, legend_above, note_below, plain_logarithm
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import GREY, line_styles, new_figure, width_or
from eval.report import Row, select, unique
from eval.seeds import without_seed
from eval.tables import with_units
from train.data.sizes import ascending
from train.measures import ACCURACY


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model: accuracy by resolution, cost at the most tokens, and mean (range) of the radii."""
    most = max(row["tokens"] for row in select(rows, part="cost"))
    lines: list[Row] = []
    for model in unique(rows, "model"):
        of_model = select(rows, model=model)
        cells: dict[str, Any] = {"model": model}
        for row in select(of_model, part="accuracy"):
            measure = measure_of(as_result(row))
            name = "%" if measure is ACCURACY else row["quantity"]
            cells[f"{name} at {row['resolution']} px"] = f"{row['value']:.{measure.digits}f}"
        for quantity, title in (("milliseconds", "ms"), ("peak MiB", "MiB")):
            (row,) = select(of_model, quantity=quantity, tokens=most)
            cells[f"{title}, {most} tokens"] = f"{row['value']:.1f}"
        for quantity in ("uniform", "attention radius", "effective radius", "sigma"):
            values = [row["value"] for row in of_quantity(select(of_model, part="radius"), quantity)]
            span = f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else ""
            cells[quantity] = f"{statistics.mean(values):.1f}{span}" if values else "none"
        lines.append(cells)
    return [*with_units(lines)]


def as_result(row: Row) -> Row:
    """Return a row of the part `accuracy` with its value in the column of its measure."""
    return {**row, row["quantity"].removesuffix(" in %"): row["value"]}


def of_quantity(rows: Sequence[Row], quantity: str) -> list[Row]:
    """Return the rows of a quantity, including those for single axes or sides: `sigma_0` is a sigma."""
    return [row for row in rows if row["quantity"] == quantity or str(row["quantity"]).startswith(f"{quantity}_")]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracies as dots for each image size, radius of each layer and head, and time and memory over tokens."""
    styles = line_styles(unique(rows, "model"))
    accuracies = [as_result(row) for row in select(rows, part="accuracy")]
    sizes = ascending(row["resolution"] for row in accuracies)
    columns = min(len(sizes), dot_columns([without_seed(model) for model in styles], width_or(6.75)))
    rows_above, rows_below = math.ceil(len(sizes) / columns), 3 if width_or(6.75) < 5 else 1
    heights = rows_above * (0.8 + 0.16 * len(styles)), 0.4 + 1.8 * rows_below
    figure = new_figure(width=6.75, height=sum(heights))
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
    places = list(above.subplots(rows_above, columns, sharey=True, squeeze=False).flat)
    for empty in places[len(sizes) :]:
        empty.remove()
    size_panels(places[: len(sizes)], group_by_model(accuracies), sizes)
    radii, time, memory = below.subplots(rows_below, 3 // rows_below)
    draw_radii(radii, select(rows, part="radius"), styles)
    costs = select(rows, part="cost")
    for axis, quantity in ((time, "milliseconds"), (memory, "peak MiB")):
        for model, style in styles.items():
            points = select(costs, model=model, quantity=quantity)
            axis.plot([p["tokens"] for p in points], [p["value"] for p in points], **style)
        count_axis(axis, unique(costs, "tokens"))
        axis.set_yscale("log")
        plain_logarithm(axis.yaxis)
        widen_hidden_lines(axis)
    time.set(title="time, folded inference", ylabel="milliseconds")
    memory.set(title="peak memory of tensors", ylabel="MiB")
    handles = [Line2D([], [], label=model, **style) for model, style in styles.items()]
    handles.append(Line2D([], [], color=GREY, linestyle=":", label="equal weights"))
    if of_quantity(rows, "sigma"):
        handles.append(Line2D([], [], color=GREY, linestyle="none", marker="x", label="sigma, learned"))
    legend_above(below, handles=handles)
    note_below(below, f"top: {note_of(accuracies, dots=True)}")
    return figure


def draw_radii(axis: Axes, rows: Sequence[Row], styles: Mapping[str, Any]) -> None:
    """Draw the effective radius of each layer and head, and learned sigmas as crosses."""
    for number, (model, style) in enumerate(styles.items()):
        for quantity, marker in (("effective radius", style["marker"]), ("sigma", "x")):
            points = of_quantity(select(rows, model=model), quantity)
            x = [point["layer"] + 0.7 * (number + 0.5) / len(styles) - 0.35 for point in points]
            axis.plot(x, [point["value"] for point in points], marker, color=style["color"], alpha=0.7, markersize=3)
    axis.axhline(select(rows, quantity="uniform")[0]["value"], color=GREY, linestyle=":", zorder=0)
    layers = sorted({row["layer"] for row in rows if row["layer"] != ""})
    axis.set(xlabel="layer", xticks=layers, title="effective radius of attention", ylabel="patches")


SHOWN = Shown(plot, summary)
