"""Table and figure of `eval compare`, from its rows alone."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Locator, MaxNLocator

from eval.columns import by_measure, difference_text, interval_text, measure_of
from eval.evaluations import Shown
from eval.plotting.accuracy import MOST_LINES, accuracy_dots, draw_band, draw_measures, group_by_model, note_of
from eval.plotting.accuracy_scale import AccuracyScale
from eval.plotting.axes import are_apart, legend_above, note_below
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import line_styles, panels
from eval.report import Row, name_cells, select, unique
from eval.seeds import FEW, few_seeds, mean_over_seeds, without_seed
from train.data.sizes import Size, ascending
from train.measures import Measure

NOT_RECORDED = "not recorded"
MARKED = 12  # most points of a curve that have markers
MOST_TICKS, APART = 5, 0.15  # most validations with a tick each, and least distance of ticks as a share of the axis


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model, averaged over its seeds: accuracies, differences, cost and training.

    Models of numbers have further rows, of their other measures alone.
    """
    sizes, lines = ascending(row["resolution"] for row in rows), list[Row]()
    for number, (measure, of_measure) in enumerate(by_measure(rows).items()):
        means = mean_over_seeds(of_measure)
        for name in unique(means, "model"):
            group = without_seed(name.partition(", mean of ")[0])
            at = {row["resolution"]: row for row in select(means, model=name)}
            cost = cost_cells(select(of_measure, resolution=sizes[0]), group, at[sizes[0]], at[sizes[-1]])
            cost = dict.fromkeys(cost, "") if number else cost
            lines.append({**name_cells(rows, measure, name), **measured_cells(group, at, sizes), **cost})
    return lines


def measured_cells(group: str, at: Mapping[Size, Row], sizes: Sequence[Size]) -> Row:
    """Return the cells of a model's measure and of its differences.

    Args:
        group: name of the model, without a seed.
        at: means of the model over its seeds, by size.
        sizes: image sizes in ascending order.
    """
    cells = {f"{size} px": interval_text(at[size]) for size in sizes}
    for size in sizes:
        row = at[size]
        title = f"difference to {row['reference']} at {size} px{' in points' * bool(measure_of(row).unit)}"
        cells[title] = "reference" if group == row["reference"] else difference_cell(row)
    return cells


def cost_cells(rows: Sequence[Row], group: str, first: Row, last: Row) -> Row:
    """Return the cells of a model's cost and training.

    Args:
        rows: rows of all runs at the first size, with their training records.
        group: name of the model, without a seed.
        first, last: means of the model over its seeds, at the first and last size.
    """
    runs = [row for row in rows if without_seed(row["model"]) == group]
    line: dict[str, Any] = {"parameters (M)": first["parameters (M)"]}
    for row in [first] if first["resolution"] == last["resolution"] else [first, last]:
        line[f"GMACs at {row['resolution']} px"] = row["GMACs"]
    line[f"peak MiB at {last['resolution']} px"] = last["peak MiB"]
    line["training images/s"] = mean_cell(runs, "training images/s", "{:.0f}")
    if first["target"] != "":
        reached = [row for row in runs if row["seconds to target"] != ""]
        recorded = any(reaches(row) is False for row in runs)
        text = mean_cell([{"x": row["seconds to target"] / 60} for row in reached], "x", "{:.1f}")
        of_all = f" ({len(reached)} of {len(runs)})" if 0 < len(reached) < len(runs) else ""
        text = text + of_all if reached else "not reached" if recorded else NOT_RECORDED
        measure = measure_of(first)
        what = "{:g} %" if measure.unit else f"{measure.title} {{:g}}"
        line[f"minutes to {what.format(first['target'])} (val)"] = text
    return line


def difference_cell(row: Row) -> str:
    """Return a difference with its interval, or a phrase where there is none on any images."""
    measure, ends = measure_of(row), (row["difference"], row["difference low"], row["difference high"])
    none = "none: right on the same images" if measure.unit else "none"
    return difference_text(measure, *ends) if any(ends) else none


def reaches(row: Row) -> bool | None:
    """Return whether a run's validations reached the target at any time; None where none were recorded."""
    values = [float(point.partition(":")[2]) for point in str(row["validations"]).split()]
    return max(values) >= row["target"] if values else None


def mean_cell(rows: Sequence[Row], column: str, form: str) -> str:
    """Return the mean of a column over the runs that recorded it, as text."""
    values = [row[column] for row in rows if row[column] != ""]
    return form.format(statistics.mean(values)) if values else NOT_RECORDED


def notes(rows: Sequence[Row]) -> list[str]:
    """Return notes on what the intervals of accuracies, and of differences where there are any, are over."""
    names = [str(name) for name in unique(rows, "model")]
    models = {without_seed(name) for name in names}
    if len(models) == 1:
        return few_seeds(rows)
    images = f"Intervals of differences are by the bootstrap over the {rows[0]['images']:,} images"
    if len(names) == len(models):
        return [f"{images}, of one seed each: other seeds can differ by more."]
    return [*few_seeds(rows), f"{images} and these seeds. {FEW}"]


def comparison_figure(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over image size, and beside it validation curves of two points or more.

    For many models only dots of accuracy are drawn. Each measure in place of the accuracy has a panel.
    """
    models = group_by_model(rows)
    if len(models) > MOST_LINES:
        return accuracy_dots(models)
    curves = {model: curves_of(of_model) for model, of_model in models.items()}
    recorded = any(len(curve) > 1 for runs in curves.values() for curve in runs)  # a single point is no curve
    measures = by_measure(rows)
    count = len(measures) + recorded
    figure, axes = panels(count, columns=3, width=6.75 if count > 1 else 5.0, height=2.9)
    styles = line_styles(list(models))
    draw_measures(axes, rows, styles)
    if recorded:
        draw_curves(axes[-1], curves, styles, next(iter(measures)), max(row["images"] for row in rows))
    legend_above(figure, axes[0])
    note = note_of(rows) + ("; training curves: val split" if recorded else "")
    note_below(figure, note)
    return figure


def curves_of(rows: Sequence[Row]) -> list[dict[int, float]]:
    """Return the recorded accuracies in %, or the main measure, by step: one mapping for each run with records."""
    texts = [str(row["validations"]).split() for row in rows if row["validations"]]
    return [{int(step): float(value) for step, value in (point.split(":") for point in text)} for text in texts]


def draw_curves(
    axis: Axes,
    curves: Mapping[str, Sequence[Mapping[int, float]]],
    styles: Mapping[str, Any],
    measure: Measure,
    images: int,
) -> None:
    """Draw the mean validation curve of each model over seeds, with a band from the lowest to the highest seed.

    Args:
        axis: axes to draw on.
        curves: values by step, for each seed of each model.
        styles: styles of the models, by name.
        measure: measure of the values.
        images: number of test images, for the lower end of an axis of errors; validation images may be more.
    """
    values = [value for runs in curves.values() for curve in runs for value in curve.values()]
    images = max(images, round(100 / min((100 - value for value in values if value < 100), default=100)))
    points = [{measure.name: value, "low": value, "images": images} for value in values]
    scale = AccuracyScale(points)
    for model, runs in curves.items():
        steps = sorted(set.intersection(*(set(curve) for curve in runs))) if runs else []
        at = [scale.values([{measure.name: curve[step]} for curve in runs], measure.name) for step in steps]
        if len(runs) > 1:
            ends = [min(values) for values in at], [max(values) for values in at]
            draw_band(axis, steps, *ends, styles[model])
        every = max(1, len(steps) // MARKED)
        axis.plot(steps, [statistics.fmean(values) for values in at], markevery=every, **styles[model])
    axis.set_xlabel("training step")
    axis.xaxis.set_major_locator(step_locator({step for runs in curves.values() for curve in runs for step in curve}))
    scale.finish(axis, points)
    axis.set_ylabel(f"validation {axis.get_ylabel()}")  # the other panel may have another split, and accuracies
    widen_hidden_lines(axis)


def step_locator(steps: Collection[int]) -> Locator:
    """Return the tick locator of an axis of steps: the validations where they are few and apart, else round numbers."""
    places = sorted(steps)
    if len(places) <= MOST_TICKS and are_apart(places, APART):
        return FixedLocator(places)
    return MaxNLocator(nbins=6, integer=True, min_n_ticks=1)


SHOWN = Shown(comparison_figure, summary, notes, names=("model", "reference"))
