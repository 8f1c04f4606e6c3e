"""Tables and figures of `eval estimator`, `intervene` and `variance`, from their rows alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.evaluations import Shown
from eval.plotting.accuracy import finish_dots, label_rows, split_of
from eval.plotting.accuracy_scale import AccuracyScale
from eval.plotting.axes import (
    count_axis,
    legend_above,
    mark_training,
    note_below,
    number_axis,
    plain_logarithm,
    size_axis,
)
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import GREY, line_styles, panels
from eval.report import Row, accuracy_title, select, unique
from eval.tables import with_units
from train.data.sizes import Size, ascending

TITLES = {  # titles of the columns that the table and the plot show, averaged over heads
    "k norm": "norm of keys",
    "entropy / log N": "entropy / log N",
    "top share": "share of the top token",
    "weight on blanks": "weight on blank patches",
    "TV to softmax": "TV to softmax",
    "TV to expected": "TV to the expected kernel",
    "distance": "mean distance in patches",
}
DISTANCES = ("TV to softmax", "TV to expected")  # exactly zero for exact attention
OF_EQUAL_WEIGHTS = {"weight on blanks": "share of blanks", "distance": "distance of uniform"}
UNTOUCHED = "as trained"
WEIGHTS = {"weight": "mean over draws", "lowest twentieth": "lowest twentieth"}


def mean_of(rows: Sequence[Row], column: str, **wanted: object) -> float:
    """Return the mean of a column over the rows that have the wanted values in other columns."""
    values = [row[column] for row in select(rows, **wanted)]
    return float(sum(values) / len(values))


def estimator_summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model, layer and resolution, averaged over heads."""
    keys = ("model", "layer", "resolution")
    groups = [{key: row[key] for key in keys} for row in rows if row["head"] == 0]
    lines = [
        {**group, **{name: f"{mean_of(rows, name, **group):.3g}" for name in TITLES if measured(rows, name)}}
        for group in sorted(groups, key=lambda group: tuple(group.values()))
    ]
    return [*with_units(lines)]


def plot_estimator(rows: Sequence[Row]) -> Figure:
    """Draw each statistic over image size, or over layers where there is one size.

    Colour and marker stand for the layer, and dashes for the model; at one size all stand for the model. Grey is the
    value of equal weights. Distances of a model that are all zero are named in the note instead of drawn.
    """
    models = unique(rows, "model")
    drawn = {name: [model for model in models if not is_zero(select(rows, model=model), name)] for name in TITLES}
    titles = {name: title for name, title in TITLES.items() if measured(rows, name) and drawn[name]}
    sizes = ascending(row["resolution"] for row in rows)
    layers = sorted(unique(rows, "layer"))
    figure, axes = panels(len(titles), columns=3, height=2.0)
    colours, styles = line_styles(layers), line_styles(models)
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for model, layer in itertools.product(drawn[name], layers if len(sizes) > 1 else ["all"]):
            if len(sizes) > 1:
                style = {**colours[layer], "linestyle": styles[model]["linestyle"]}
                of_model = select(rows, model=model, layer=layer)
                points = {size.side: mean_of(of_model, name, resolution=size) for size in sizes if of_model}
            else:
                style = styles[model]
                of_model = select(rows, model=model)
                points = {layer: mean_of(of_model, name, layer=layer) for layer in unique(of_model, "layer")}
            axis.plot(list(points), list(points.values()), **style)
        if len(sizes) > 1:
            size_axis(axis, sizes)
            mark_training(axis, rows, named=False)
        else:
            axis.set(xlabel="layer", xticks=layers)
        if name in OF_EQUAL_WEIGHTS:
            draw_equal_weights(axis, rows, OF_EQUAL_WEIGHTS[name], sizes, layers)
        axis.set_title(title)
        widen_hidden_lines(axis)
    handles = [
        Line2D([], [], label=model, **(style if len(sizes) == 1 else {**style, "color": GREY, "marker": ""}))
        for model, style in styles.items()
    ]
    if len(sizes) > 1:
        marks = {layer: {**style, "linestyle": "none"} for layer, style in colours.items()}
        handles += [Line2D([], [], label=f"layer {layer}", **style) for layer, style in marks.items()]
    legend_above(figure, handles=[*handles, Line2D([], [], label="equal weights", color=GREY, linewidth=0.8)])
    trained = "; vertical line: training size" if len(sizes) > 1 else ""
    size = f" of {sizes[0]} px" if len(sizes) == 1 else ""
    means = f"{split_of(rows)}{rows[0]['images']} images{size}; means over heads"
    note_below(figure, f"{means}; TV: total variation{without(models, drawn)}{trained}")
    return figure


def is_zero(rows: Sequence[Row], name: str) -> bool:
    """Return whether a statistic is a distance that is zero in all these rows."""
    return name in DISTANCES and all(row[name] < 1e-6 for row in rows)


def without(models: Sequence[str], drawn: Mapping[str, Sequence[str]]) -> str:
    """Return a note on the models that are missing from one or both panels of distances."""
    exact = [model for model in models if not any(model in drawn[name] for name in DISTANCES)]
    some = [model for model in models if model not in exact and model not in drawn["TV to expected"]]
    texts = [f"0 for {', '.join(exact)}"] if exact else []
    texts += [f"to the expected kernel 0 for {', '.join(some)}"] if some else []
    return f", {', '.join(texts)}" if texts else ""


def measured(rows: Sequence[Row], name: str) -> bool:
    """Return whether a statistic has values: images may have no blank patches, and some kernels are not known."""
    if name == "weight on blanks":
        return any(row["share of blanks"] > 0.1 for row in rows)
    return any(not math.isnan(row[name]) for row in rows)


def draw_equal_weights(
    axis: Axes, rows: Sequence[Row], column: str, sizes: Sequence[Size], layers: Sequence[int]
) -> None:
    """Draw the value of a statistic under equal weights."""
    equal = [mean_of(rows, column, resolution=size) for size in sizes]
    x, y = ([size.side for size in sizes], equal) if len(sizes) > 1 else ([layers[0], layers[-1]], equal * 2)
    axis.plot(x, y, color=GREY, linewidth=0.8, label="equal weights")


def intervene_summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model and intervention: accuracy at each resolution, and its change."""
    sizes = ascending(row["resolution"] for row in rows)
    cells = {(r["model"], r["intervention"], r["resolution"]): r["accuracy"] for r in rows}
    lines: list[Row] = []
    for model, name in dict.fromkeys((r["model"], r["intervention"]) for r in rows):
        line = {"model": model, accuracy_title(rows): name}
        for size in sizes:
            change = cells[model, name, size] - cells[model, UNTOUCHED, size]
            line[f"{size} px"] = f"{cells[model, name, size]:.1f}" + (f" ({change:+.1f})" if name != UNTOUCHED else "")
        lines.append(line)
    return lines


def plot_intervene(rows: Sequence[Row]) -> Figure:
    """Draw accuracy under each intervention, a panel for each image size, with a line for the model as trained."""
    sizes = ascending(row["resolution"] for row in rows)
    names, models = unique(rows, "intervention"), unique(rows, "model")
    height = 1.0 + 0.2 * len(names) * max(1.0, 0.7 * len(models))
    figure, axes = panels(len(sizes), len(sizes), height=height, sharey=True)
    scale = AccuracyScale(rows)
    for axis, size in zip(axes, sizes, strict=True):
        for i, (model, style) in enumerate(line_styles(models).items()):
            points = select(rows, model=model, resolution=size)
            heights = [names.index(row["intervention"]) + 0.7 * ((i + 0.5) / len(models) - 0.5) for row in points]
            values, low, high = (scale.values(points, column) for column in ("accuracy", "low", "high"))
            axis.hlines(heights, low, high, color=style["color"], linewidth=0.8)
            axis.plot(values, heights, label=model, **{**style, "linestyle": "none"})
            axis.axvline(values[0], color=style["color"], linestyle=style["linestyle"], linewidth=0.8, zorder=0)
        axis.set(title=f"{size} px", xlabel="error in %" if scale.errors else "accuracy in %")
        finish_dots(axis, select(rows, resolution=size), scale)
    for axis in axes:
        label_rows(axis, names)
        axis.label_outer()
    if len(models) > 1:
        legend_above(figure)
    note_below(figure, f"{split_of(rows)}{rows[0]['images']} images; bars: 95 % interval over images")
    return figure


def at_smallest_angle(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the smallest angle."""
    return select(rows, angle=min(row["angle"] for row in rows))


def variance_summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each map: the weight of the key nearest to the query, and its 5 % quantile over draws."""
    lines: list[Row] = []
    near = at_smallest_angle(rows)
    for title in unique(near, "map"):
        of_map = select(near, map=title)
        name = {f"weight of a key at {of_map[0]['angle']:g} degrees": title}
        weights = {f"m = {r['features']}": f"{r['weight']:.2f} ({r['lowest twentieth']:.2f})" for r in of_map}
        lines.append({**name, **weights, "limit": f"{of_map[0]['weight in the limit']:.2f}"})
    return lines


def plot_variance(rows: Sequence[Row]) -> Figure:
    """Draw the error of the estimate and the weight at the smallest angle, over the number of features."""
    near = at_smallest_angle(rows)
    counts = sorted(unique(near, "features"))
    figure, (errors, *weights) = panels(3, 3, height=2.9)
    angle = f"{near[0]['angle']:g} degrees"
    for title, style in line_styles(unique(near, "map")).items():
        of_map = sorted(select(near, map=title), key=lambda row: row["features"])
        errors.plot(counts, [row["relative error"] for row in of_map], label=title, **style)
        expected = [row["with independent draws"] for row in of_map]
        errors.plot(counts, expected, linestyle=":", linewidth=0.9, color=style["color"])
        for axis, column in zip(weights, WEIGHTS, strict=True):
            draw_weights(axis, of_map, column, style)
    errors.set(yscale="log", ylabel="standard deviation over the kernel", title="error of the estimate")
    plain_logarithm(errors.yaxis)
    count_axis(errors, counts, "features")
    for axis, what in zip(weights, WEIGHTS.values(), strict=True):
        axis.set(yscale="log", ylabel=f"weight of a key at {angle}", title=what)
        plain_logarithm(axis.yaxis)
        number_axis(axis, {**{count: str(count) for count in counts}, limit_of(counts): "limit"}, "features")
    legend_above(figure)
    note_below(figure, "left, dotted: independent draws; open marks: the limit of many features")
    return figure


def draw_weights(axis: Axes, rows: Sequence[Row], column: str, style: dict[str, Any]) -> None:
    """Draw the weights of one map over the number of features, and their limit, which all draws share."""
    counts = [row["features"] for row in rows]
    axis.plot(counts, [row[column] for row in rows], **style)
    limit = {"marker": style["marker"], "color": style["color"], "fillstyle": "none", "linestyle": "none"}
    axis.plot(limit_of(counts), rows[0]["weight in the limit"], **limit)


def limit_of(counts: Sequence[int]) -> float:
    """Return the coordinate on the axis at which the limit of many features is drawn."""
    return 2.4 * max(counts)


ESTIMATOR = Shown(plot_estimator, estimator_summary)
INTERVENE = Shown(plot_intervene, intervene_summary, names=("model", "intervention"))
VARIANCE = Shown(plot_variance, variance_summary, names=("map",))
