"""Table and figure of `eval cost`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.columns import by_measure, interval_text
from eval.evaluations import Shown
from eval.plotting.accuracy import note_of
from eval.plotting.accuracy_scale import AccuracyScale
from eval.plotting.axes import legend_above, note_below, plain_logarithm
from eval.plotting.style import line_styles, panels
from eval.report import Row, accuracy_title, select, unique
from eval.seeds import mean_over_seeds, without_seed
from eval.tables import with_units
from train.measures import Measure


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model and resolution, averaged over seeds, with the cost of the first seed.

    Of several measures the table has the main one.
    """
    measure, of_measure = main_measure(rows)
    left_out = (measure.name, "low", "high", "trained at", "split")
    lines = [
        {
            **{key: value for key, value in row.items() if key not in left_out},
            accuracy_title(of_measure): interval_text(row),
        }
        for row in mean_over_seeds(of_measure)
    ]
    return [*with_units(lines)]


def main_measure(rows: Sequence[Row]) -> tuple[Measure, list[Row]]:
    """Return the main measure of rows, and the rows without the columns of others."""
    return next(iter(by_measure(rows).items()))


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over time and over operations, a curve through the resolutions of each model."""
    measure, rows = main_measure(rows)
    means = mean_over_seeds(rows)
    models = list(dict.fromkeys(without_seed(row["model"]) for row in rows))
    figure, axes = panels(2, height=2.8, sharey=True)
    scale = AccuracyScale(rows)
    titles = {"ms": "milliseconds an image", "GMACs": "GMACs an image"}
    for axis, (quantity, title) in zip(axes, titles.items(), strict=True):
        axis.set(xscale="log", xlabel=title)
        for (model, style), name in zip(line_styles(models).items(), unique(means, "model"), strict=True):
            curve = sorted(select(means, model=name), key=lambda row: row["tokens"])
            x, y = [row[quantity] for row in curve], scale.values(curve, measure.name)
            ends = zip(scale.values(curve, "low"), scale.values(curve, "high"), strict=True)
            axis.plot(x, y, label=model, **style)
            axis.vlines(x, *zip(*map(sorted, ends), strict=True), color=style["color"], linewidth=0.8)
            for row, point in zip(curve, zip(x, y, strict=True), strict=True):
                text = {"textcoords": "offset points", "fontsize": 6, "color": style["color"]}
                axis.annotate(str(row["resolution"]), point, (3, -8), **text)
        axis.margins(x=0.08)
        plain_logarithm(axis.xaxis)
        scale.finish(axis, rows)
    for axis in axes[1:]:
        axis.set_ylabel("")
    legend_above(figure)
    note_below(
        figure,
        f"{note_of(rows)}; beside each point: image size in pixels".replace(
            "bands: lowest to highest seed", "bars: 95 % interval over seeds"
        ),
    )
    return figure


SHOWN = Shown(plot, summary)
