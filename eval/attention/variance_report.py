"""Table and figure of `eval variance`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.axes import count_axis, legend_above, note_below, number_axis, plain_logarithm
from eval.plotting.style import line_styles, panels
from eval.report import Row, select, unique


def at_smallest_angle(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the smallest angle."""
    return select(rows, angle=min(row["angle"] for row in rows))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each map: the weight of the key nearest to the query, and its 5 % quantile over draws."""
    lines: list[Row] = []
    near = at_smallest_angle(rows)
    for title in unique(near, "map"):
        of_map = select(near, map=title)
        name = {f"weight of a key at {of_map[0]['angle']:g} degrees": title}
        weights = {f"m = {r['features']}": f"{r['weight']:.2f} ({r['lowest twentieth']:.2f})" for r in of_map}
        lines.append({**name, **weights, "limit": f"{of_map[0]['weight in the limit']:.2f}"})
    return lines


WEIGHTS = {"weight": "mean over draws", "lowest twentieth": "lowest twentieth"}


def plot(rows: Sequence[Row]) -> Figure:
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


SHOWN = Shown(plot, summary, names=("map",))
