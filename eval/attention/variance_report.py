"""Table and figure of `eval variance`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.plotting.axes import beside, count_axis, legend_above, note_below, number_axis, plain_logarithm
from eval.plotting.style import line_styles, panels
from eval.report import Row, select, unique

NAMES = "map"  # the column that has labels


def at_smallest_angle(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the smallest angle."""
    return select(rows, angle=min(row["angle"] for row in rows))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each map: the weight of the key nearest to the query, and its lowest twentieth over draws."""
    lines: list[Row] = []
    near = at_smallest_angle(rows)
    for title in unique(near, "map"):
        of_map = select(near, map=title)
        name = {f"weight of a key at {of_map[0]['angle']:g} degrees": title}
        weights = {f"m = {r['features']}": f"{r['weight']:.2f} ({r['lowest twentieth']:.2f})" for r in of_map}
        lines.append({**name, **weights, "limit": f"{of_map[0]['weight in the limit']:.2f}"})
    return lines


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the error of the estimate and the weight at the smallest angle, over the number of features."""
    near = at_smallest_angle(rows)
    counts = sorted(unique(near, "features"))
    limit = 2.4 * counts[-1]  # where the limit of many features stands
    figure, (errors, weights) = panels(2, height=3.0)
    maps = unique(near, "map")
    for number, (title, style) in enumerate(line_styles(maps).items()):
        of_map = sorted(select(near, map=title), key=lambda row: row["features"])
        errors.plot(counts, [row["relative error"] for row in of_map], label=title, **style)
        expected = [row["with independent draws"] for row in of_map]
        errors.plot(counts, expected, linestyle=":", linewidth=0.9, color=style["color"])
        mean, lowest = ([row[column] for row in of_map] for column in ("weight", "lowest twentieth"))
        moved = beside(weights, number, len(maps))
        weights.plot(counts, mean, transform=moved, **style)
        weights.vlines(counts, lowest, mean, transform=moved, color=style["color"], linewidth=0.8)
        weights.plot(limit, of_map[0]["weight in the limit"], style["marker"], color=style["color"], fillstyle="none")
    angle = f"{near[0]['angle']:g} degrees"
    errors.set(yscale="log", ylabel="standard deviation over the kernel", title=f"estimate at {angle}")
    plain_logarithm(errors.yaxis)
    weights.set(ylabel="weight", title=f"weight of a key at {angle} among others")
    count_axis(errors, counts, "features")
    number_axis(weights, {**{count: str(count) for count in counts}, limit: "limit"}, "features")
    legend_above(figure)
    note_below(figure, "left, dotted: independent draws; right, bars: down to the lowest twentieth of the draws")
    return figure
