"""Accuracy over image size: lines with bands over seeds for a few models, and dots for many models or videos."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.columns import by_measure, measures_of
from eval.plotting.accuracy_scale import AccuracyScale, widened
from eval.plotting.axes import beside, legend_above, mark_training, note_below, size_axis
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import BLACK, BLUE, GREY, line_styles, panels, width_or
from eval.report import MAJORITY, Row, select, unique, views_of
from eval.seeds import mean_over_seeds, without_seed
from train.data.sizes import ascending

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from train.data.sizes import Size

LETTERS = 15  # most letters of a line below a panel of dots
MOST_LINES = 7  # number of colours in the palette; more models are drawn as dots
MOST_ERROR_LINES = 3  # most lines on an axis of errors, where lines and bands meet near zero


def accuracy_figure(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over image size.

    Args:
        rows: rows with `model`, `resolution`, `accuracy` (or the measures in its place, with a panel for each), `low`,
            `high`, `images`, `majority baseline` (of accuracies), `trained at`.
    """
    models = group_by_model(rows)
    most = MOST_ERROR_LINES if AccuracyScale(rows).errors else MOST_LINES
    as_lines = len(models) <= most and not differ_in_time_and_space(unique(rows, "resolution"))
    return accuracy_lines(models) if as_lines else accuracy_dots(models)


def differ_in_time_and_space(sizes: Sequence[Size]) -> bool:
    """Return whether videos differ in both length and frame size, so that no line can connect all of them."""
    videos = [size for size in sizes if len(size) == 3]
    return len({video[0] for video in videos}) > 1 and len({video[1:] for video in videos}) > 1


def group_by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each model with all its seeds, in ascending order of image size."""
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(without_seed(row["model"]), []).append(row)
    return {model: sorted(of_model, key=lambda row: row["resolution"].side) for model, of_model in models.items()}


def accuracy_lines(models: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw a line for each model, with a band from its lowest to its highest seed, or error bars for a single seed."""
    rows = [row for of_model in models.values() for row in of_model]
    count = len(measures_of(rows[0]))
    figure, axes = panels(count, width=5.0 if count == 1 else 6.75, height=3.1)
    draw_measures(axes, rows, line_styles(list(models)))
    legend_above(figure)
    note_below(figure, note_of(rows))
    return figure


def draw_measures(axes: Sequence[Axes], rows: Sequence[Row], styles: Mapping[str, Any]) -> None:
    """Draw the lines of models into a panel for each measure of the rows; `styles` has their styles by name."""
    for axis, of_measure in zip(axes, by_measure(rows).values(), strict=False):
        draw_lines(axis, group_by_model(of_measure), styles)


def draw_lines(axis: Axes, models: Mapping[str, Sequence[Row]], styles: Mapping[str, Any]) -> None:
    """Draw the lines of models into a panel; `models` is as in `accuracy_lines`, `styles` has their styles by name."""
    rows = [row for of_model in models.values() for row in of_model]
    scale = AccuracyScale(rows)
    sizes = ascending(row["resolution"] for row in rows)
    for number, (model, style) in enumerate(styles.items()):
        draw_model(axis, models[model], model, scale, beside(axis, number, len(models), sizes), style)
    size_axis(axis, sizes)
    mark_training(axis, rows)
    scale.finish(axis, rows)
    widen_hidden_lines(axis)


def draw_model(axis: Axes, rows: Sequence[Row], label: str, scale: AccuracyScale, shift: Any, style: Any) -> None:
    """Draw the mean over the seeds of one model, with its band or its error bars.

    Args:
        axis: axes to draw on.
        rows: rows of all seeds, in ascending order of image size.
        label: name of the model in the legend.
        scale: scale of the accuracies.
        shift: transform of points with error bars, so that they do not hide those of other models.
        style: colour, marker and line style.
    """
    seeds, mean = unique(rows, "model"), mean_over_seeds(rows)
    sides = [row["resolution"].side for row in mean]
    label = f"{label} ({len(seeds)} seeds)" if len(seeds) > 1 else label
    values = scale.values(mean, scale.column)
    if len(seeds) > 1:
        by_size = [[row for row in rows if row["resolution"] == each["resolution"]] for each in mean]
        low, high = ([f(scale.values(same, scale.column)) for same in by_size] for f in (min, max))
        draw_band(axis, sides, low, high, style)
        moved = {"transform": shift} if scale.errors else {}  # lines without an error would coincide
        axis.errorbar(sides, values, label=label, **moved, **style)  # legends list lines before those with bars
        return
    ends = [scale.values(mean, end) for end in ("low", "high")]
    bars = np.abs(np.sort(ends, axis=0) - values)  # for an error, `low` is the upper end
    axis.errorbar(sides, values, bars, label=label, transform=shift, elinewidth=0.8, **style)
    axis.update_datalim([point for end in ends for point in zip(sides, end, strict=True)])
    axis.autoscale_view()


def draw_band(axis: Axes, places: Sequence[float], low: Sequence[float], high: Sequence[float], style: Any) -> None:
    """Draw the band of one model over its seeds, with edges in the model's line style to distinguish equal bands."""
    axis.fill_between(places, low, high, color=style["color"], alpha=0.12, linewidth=0)
    edge: dict[str, Any] = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 0.6}
    for ends in (low, high):
        axis.plot(places, ends, marker="None", **edge)


def accuracy_dots(models: dict[str, list[Row]], reference: str | None = None) -> Figure:
    """Draw a panel for each image size, with a row for each model: a dot for every seed, and a bar for the mean.

    Rows of several measures have panels for each of them.

    Args:
        models: rows of each model, by name.
        reference: name of the model whose mean is drawn as a line through all rows; None for no line.
    """
    rows = [row for of_model in models.values() for row in of_model]
    sizes = ascending(row["resolution"] for row in rows)
    columns = dot_columns(list(models), width_or(6.75))
    parts = by_measure(rows)
    count = len(parts) * len(sizes)
    more_lines = max(below_dots(measure.label).count("\n") for measure in parts)
    height = 0.9 + 0.16 * (len(models) + more_lines)
    figure, axes = panels(count, columns, height=height, narrowest=0.8, sharey=True)
    for start, of_measure in zip(range(0, count, len(sizes)), parts.values(), strict=True):
        by_name = group_by_model(of_measure)
        size_panels(axes[start : start + len(sizes)], {name: by_name[name] for name in models}, sizes, reference)
    line = "" if reference is None else f"; grey line: mean of {reference}"
    note_below(figure, note_of(rows, dots=True) + line)
    return figure


def size_panels(
    axes: Sequence[Axes], models: Mapping[str, Sequence[Row]], sizes: Sequence[Size], reference: str | None = None
) -> None:
    """Draw the dots of each image size into its panel; arguments are as in `accuracy_dots`."""
    rows = [row for of_model in models.values() for row in of_model]
    scale = AccuracyScale(rows)
    for axis, size in zip(axes, sizes, strict=True):
        for height, of_model in enumerate(models.values()):
            draw_dots(axis, select(of_model, resolution=size), height, scale)
        if reference is not None:
            mean = scale.values(mean_over_seeds(select(models[reference], resolution=size)), scale.column)[0]
            axis.axvline(mean, color=GREY, linewidth=0.8, zorder=0)
        axis.set(title=f"{size} px", xlabel=below_dots(scale.label))
        finish_dots(axis, select(rows, resolution=size), scale)
    label_rows(axes[0], list(models))


def below_dots(label: str) -> str:
    """Return the label below a panel of dots, in lines of its width."""
    return textwrap.fill(label, LETTERS)


def dot_columns(names: Sequence[str], width: float) -> int:
    """Return the number of panels of at least 0.95 inches that fit side by side, to the right of the names."""
    return max(1, int((width - 0.2 - 0.055 * max(map(len, names))) / 0.95))


def draw_dots(axis: Axes, rows: Sequence[Row], height: int, scale: AccuracyScale) -> None:
    """Draw the seeds of a model at one image size as dots with their mean as a bar, or one seed with its interval."""
    if not rows:
        place: dict[str, Any] = {"transform": axis.get_yaxis_transform(), "ha": "center", "va": "center"}
        axis.text(0.5, height, "not measured", fontsize=6, color=GREY, **place)
        return
    values = scale.values(rows, scale.column)
    axis.plot(values, [height] * len(values), "o", color=BLUE, alpha=0.5, markersize=3.5, markeredgewidth=0)
    (mean,) = scale.values(mean_over_seeds(rows), scale.column)
    if len(rows) > 1:
        axis.plot(mean, height, "|", color=BLACK, markersize=7, markeredgewidth=1.4)
    else:
        axis.plot([scale.values(rows, end)[0] for end in ("low", "high")], [height] * 2, color=BLUE, linewidth=0.8)


def finish_dots(axis: Axes, rows: Sequence[Row], scale: AccuracyScale) -> None:
    """Set the scale of a panel of dots, with the majority baseline where it is in range."""
    if scale.errors:
        axis.set_xscale("log")
        axis.set_xlim(scale.least * 0.6, 100)
        ticks = [tick for tick in (0.1, 1, 10, 100) if tick > 6 * scale.least]  # so that labels do not overlap
        axis.set_xticks([scale.least, *ticks], ["none", *(f"{tick:g}" for tick in ticks)])
        axis.set_xticks([], minor=True)
        axis.axvline(100 - rows[0][MAJORITY], color=GREY, linestyle=":", linewidth=1, zorder=0)
        return
    (low, high), majority = axis.get_xlim(), rows[0].get(MAJORITY, "")
    if majority != "" and low < majority + 0.5 * (high - low):
        axis.axvline(majority, color=GREY, linestyle=":", linewidth=1, zorder=0)
    axis.set_xlim(*widened(*axis.get_xlim(), scale.measure))


def label_rows(axis: Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel, the first at the top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)


def note_of(rows: Sequence[Row], dots: bool = False) -> str:
    """Return the caption of a plot of accuracies."""
    images = {row["images"] for row in rows}
    count = f"{min(images):,}" + (f" to {max(images):,}" if len(images) > 1 else "")
    parts = [", ".join([f"{split_of(rows)}{count} images", *views_of(rows)])]
    seeds = [len(unique(of_model, "model")) for of_model in group_by_model(rows).values()]
    several, one = max(seeds) > 1, min(seeds) == 1
    if several:
        parts.append("dots: seeds; bar: their mean" if dots else "bands: lowest to highest seed")
    if one:
        parts.append("lines: 95 % interval over images" if dots else "bars: 95 % interval over images")
    if rows[0].get(MAJORITY):
        parts.append(f"{MAJORITY}: {max(row[MAJORITY] for row in rows):.1f} %")
    return "; ".join(parts)


def split_of(rows: Sequence[Row]) -> str:
    """Return the split that rows were measured on, as `test split, `; empty for results without that column."""
    splits = unique((row for row in rows if row.get("split")), "split")
    return f"{' and '.join(map(str, splits))} split, " if splits else ""
