"""Table and figure of `eval intervene`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import finish_dots, label_rows, split_of
from eval.plotting.accuracy_scale import AccuracyScale
from eval.plotting.axes import legend_above, note_below
from eval.plotting.style import line_styles, panels
from eval.report import Row, accuracy_title, select, unique
from train.data.sizes import ascending

UNTOUCHED = "as trained"


def summary(rows: Sequence[Row]) -> list[Row]:
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


def plot(rows: Sequence[Row]) -> Figure:
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


SHOWN = Shown(plot, summary, names=("model", "intervention"))
