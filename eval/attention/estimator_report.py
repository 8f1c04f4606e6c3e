"""Table and figure of `eval estimator`, from its rows alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.evaluations import Shown
from eval.plotting.accuracy import split_of
from eval.plotting.axes import legend_above, mark_training, note_below, size_axis
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import GREY, line_styles, panels
from eval.report import Row, select, unique
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


def mean_of(rows: Sequence[Row], column: str, **wanted: object) -> float:
    """Return the mean of a column over the rows that have the wanted values in other columns."""
    values = [row[column] for row in select(rows, **wanted)]
    return float(sum(values) / len(values))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model, layer and resolution, averaged over heads."""
    keys = ("model", "layer", "resolution")
    groups = [{key: row[key] for key in keys} for row in rows if row["head"] == 0]
    lines = [
        {**group, **{name: f"{mean_of(rows, name, **group):.3g}" for name in TITLES if measured(rows, name)}}
        for group in sorted(groups, key=lambda group: tuple(group.values()))
    ]
    return [*with_units(lines)]


def plot(rows: Sequence[Row]) -> Figure:
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


SHOWN = Shown(plot, summary)
