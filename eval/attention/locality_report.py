"""Table and figure of `eval locality`, from its rows alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.plotting.accuracy import AccuracyScale, draw_model, note_of
from eval.plotting.axes import beside, count_axis, legend_above, mark_training, note_below, plain_logarithm, size_axis
from eval.plotting.style import GREY, line_styles, panels
from eval.report import Row, select, unique
from eval.statistics import without_seed
from train.data.sizes import ascending


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line a model: accuracy at each resolution, cost at the most tokens, radii as mean (range) of heads."""
    most = max(row["tokens"] for row in select(rows, part="cost"))
    lines: list[Row] = []
    for model in unique(rows, "model"):
        of_model = select(rows, model=model)
        cells: dict[str, Any] = {"model": model}
        for row in select(of_model, part="accuracy"):
            cells[f"% at {row['resolution']} px"] = f"{row['value']:.1f}"
        for quantity, title in (("milliseconds", "ms"), ("peak MiB", "MiB")):
            (row,) = select(of_model, quantity=quantity, tokens=most)
            cells[f"{title}, {most} tokens"] = f"{row['value']:.1f}"
        for quantity in ("uniform", "attention radius", "effective radius", "sigma"):
            values = [row["value"] for row in select(of_model, part="radius", quantity=quantity)]
            span = f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else ""
            cells[quantity] = f"{statistics.mean(values):.1f}{span}" if values else "none"
        lines.append(cells)
    return lines


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over image size, radius of each layer and head, and time and memory over tokens."""
    styles = line_styles(unique(rows, "model"))
    figure, (accuracy, radii, time, memory) = panels(4, height=2.5)
    draw_accuracies(accuracy, select(rows, part="accuracy"), styles)
    draw_radii(radii, select(rows, part="radius"), styles)
    costs = select(rows, part="cost")
    for axis, quantity in ((time, "milliseconds"), (memory, "peak MiB")):
        for model, style in styles.items():
            points = select(costs, model=model, quantity=quantity)
            axis.plot([p["tokens"] for p in points], [p["value"] for p in points], **style)
        count_axis(axis, unique(costs, "tokens"))
        axis.set_yscale("log")
        plain_logarithm(axis.yaxis)
    time.set_ylabel("milliseconds, folded inference")
    memory.set_ylabel("peak memory of tensors in MiB")
    legend_above(figure, accuracy)
    note_below(figure, note_of(select(rows, part="accuracy")))
    return figure


def draw_accuracies(axis: Axes, rows: Sequence[Row], styles: Mapping[str, Any]) -> None:
    """Draw accuracy over image size with intervals."""
    rows = [{**row, "accuracy": row["value"]} for row in rows]
    scale = AccuracyScale(rows)
    for number, (model, style) in enumerate(styles.items()):
        points = sorted(select(rows, model=model), key=lambda row: row["resolution"].side)
        draw_model(axis, points, without_seed(model), scale, beside(axis, number, len(styles)), style)
    size_axis(axis, ascending(row["resolution"] for row in rows))
    mark_training(axis, rows)
    scale.finish(axis, rows)


def draw_radii(axis: Axes, rows: Sequence[Row], styles: Mapping[str, Any]) -> None:
    """Draw the effective radius of each layer and head, and the sigmas that were learned as crosses."""
    for number, (model, style) in enumerate(styles.items()):
        for quantity, marker in (("effective radius", style["marker"]), ("sigma", "x")):
            points = select(rows, model=model, quantity=quantity)
            x = [point["layer"] + 0.7 * (number + 0.5) / len(styles) - 0.35 for point in points]
            axis.plot(x, [point["value"] for point in points], marker, color=style["color"], alpha=0.7, markersize=3)
    axis.axhline(select(rows, quantity="uniform")[0]["value"], color=GREY, linestyle=":", zorder=0)
    layers = sorted({row["layer"] for row in rows if row["layer"] != ""})
    axis.set(xlabel="layer", xticks=layers, ylabel="effective radius in patches")
    handles = [Line2D([], [], color=GREY, linestyle=":", label="equal weights")]
    if select(rows, quantity="sigma"):
        handles.append(Line2D([], [], color=GREY, linestyle="none", marker="x", label="sigma, learned"))
    axis.legend(handles=handles, loc="best", fontsize=6)
