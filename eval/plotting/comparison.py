"""Comparison of models: accuracy over image size, and validation curves with bands over seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import FixedLocator, Locator, MaxNLocator

from eval.plotting.accuracy import MOST_LINES, accuracy_dots, draw_band, draw_lines, group_by_model, note_of
from eval.plotting.accuracy_scale import AccuracyScale
from eval.plotting.axes import are_apart, legend_above, note_below
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import line_styles, panels
from eval.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED = 12  # most points of a curve that have markers
MOST_TICKS, APART = 5, 0.15  # most validations with a tick each, and least distance of ticks as a share of the axis


def comparison_figure(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over image size, and beside it validation curves of two points or more.

    For many models only dots of accuracy are drawn.
    """
    models = group_by_model(rows)
    if len(models) > MOST_LINES:
        return accuracy_dots(models)
    curves = {model: curves_of(of_model) for model, of_model in models.items()}
    recorded = any(len(curve) > 1 for runs in curves.values() for curve in runs)  # a single point is no curve
    figure, axes = panels(2 if recorded else 1, width=6.75 if recorded else 5.0, height=2.9)
    styles = line_styles(list(models))
    draw_lines(axes[0], models, styles)
    if recorded:
        draw_curves(axes[1], curves, styles, max(row["images"] for row in rows))
    legend_above(figure, axes[0])
    note = note_of(rows) + ("; training curves: val split" if recorded else "")
    note_below(figure, note)
    return figure


def curves_of(rows: Sequence[Row]) -> list[dict[int, float]]:
    """Return the recorded accuracies in % by step, one mapping for each run with records."""
    texts = [str(row["validations"]).split() for row in rows if row["validations"]]
    return [{int(step): float(value) for step, value in (point.split(":") for point in text)} for text in texts]


def draw_curves(
    axis: Axes, curves: Mapping[str, Sequence[Mapping[int, float]]], styles: Mapping[str, Any], images: int
) -> None:
    """Draw the mean validation curve of each model over seeds, with a band from the lowest to the highest seed.

    Args:
        axis: axes to draw on.
        curves: accuracies in % by step, for each seed of each model.
        styles: styles of the models, by name.
        images: number of images, for the lower end of an axis of errors.
    """
    points = [{"accuracy": value, "low": value, "images": images} for value in all_values(curves)]
    scale = AccuracyScale(points)
    for model, runs in curves.items():
        steps = sorted(set.intersection(*(set(curve) for curve in runs))) if runs else []
        at = [scale.values([{"accuracy": curve[step]} for curve in runs], "accuracy") for step in steps]
        if len(runs) > 1:
            ends = [min(values) for values in at], [max(values) for values in at]
            draw_band(axis, steps, *ends, styles[model])
        every = max(1, len(steps) // MARKED)
        axis.plot(steps, [fmean(values) for values in at], markevery=every, **styles[model])
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


def all_values(curves: Mapping[str, Sequence[Mapping[int, float]]]) -> list[float]:
    """Return the accuracies of all curves."""
    return [value for runs in curves.values() for curve in runs for value in curve.values()]
