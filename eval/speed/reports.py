"""Tables and figures of the evaluations of speed, from their rows alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import label_rows
from eval.plotting.axes import count_axis, legend_above, plain_logarithm
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import BLACK, GREY, line_styles, new_figure, panels
from eval.report import Row, select, unique
from eval.tables import with_units

PLAIN = "plain ViT"  # model that others are compared with
OWN, PERFORMER = "recipe", "performer-pytorch"  # the models that are timed for each recipe
HOLLOW = {"linestyle": "none", "markerfacecolor": "none"}  # equal values of two models stay visible
DIGITS = {"to plain": 2, "tokens/s": 0, "to softmax": 3, "peak MiB": 1, "error to softmax": 4, "of peak": 3}
DIGITS |= {"time exponent": 2, "memory exponent": 2}
QUANTITIES = {"ms": "milliseconds", "peak MiB": "peak memory in MiB"}
MOST_VALUES = 3  # most points of a single line that are labelled with their values
TITLES = {"ms": "time", "peak MiB": "memory"}


def length_figure(groups: Mapping[str, Sequence[Row]], column: str) -> Figure:
    """Draw time and memory over the tokens, two panels for each group; bars for a single number of tokens.

    Args:
        groups: rows by the title of their panels.
        column: name of the column whose values have a line each.
    """
    rows = [row for group in groups.values() for row in group]
    names = unique(rows, column)
    counts = unique(rows, "tokens")
    alone = f"{names[0]}, " if len(names) == 1 else ""  # in the titles, instead of a legend
    height = 2.5 if len(counts) > 1 else 0.8 + 0.25 * len(names)
    figure, axes = panels(2 * len(groups), height=height)
    places = [(title, group, quantity) for title, group in groups.items() for quantity in QUANTITIES]
    for axis, (title, group, quantity) in zip(axes, places, strict=True):
        what = f"{title}: {TITLES[quantity]}" if title else TITLES[quantity]
        if len(counts) > 1:
            draw_lines(axis, group, column, quantity, line_styles(names))
            count_axis(axis, counts)
            axis.set(title=alone + what, ylabel=QUANTITIES[quantity], yscale="log")
            plain_logarithm(axis.yaxis)
            widen_hidden_lines(axis)
        else:
            draw_bars(axis, group, column, quantity)
            axis.set(title=f"{what} at {counts[0]:,} tokens", xlabel=QUANTITIES[quantity])
    if len(counts) > 1 and not alone:
        legend_above(figure)
    return figure


def draw_lines(axis: Axes, rows: Sequence[Row], column: str, quantity: str, styles: Mapping[str, Any]) -> None:
    """Draw a quantity over the tokens, with a line for each name."""
    for name, style in styles.items():
        line = sorted(select(rows, **{column: name}), key=lambda row: row["tokens"])
        axis.plot([row["tokens"] for row in line], [row[quantity] for row in line], label=name, **style)
        if len(styles) == 1 and len(line) <= MOST_VALUES:
            write_values(axis, line, quantity)


def write_values(axis: Axes, line: Sequence[Row], quantity: str) -> None:
    """Label each point of a single line with its value, on the side with more room."""
    for number, row in enumerate(line):
        side = ("left", 5) if number == 0 else ("right", -5)
        place: dict[str, Any] = {"textcoords": "offset points", "ha": side[0], "va": "center", "fontsize": 7}
        value = f"{row[quantity]:,.0f}" if row[quantity] >= 100 else f"{row[quantity]:.3g}"
        axis.annotate(value, (row["tokens"], row[quantity]), (side[1], 0), **place)


def draw_bars(axis: Axes, rows: Sequence[Row], column: str, quantity: str) -> None:
    """Draw a bar for each name, with its value."""
    bars = axis.barh([row[column] for row in rows], [row[quantity] for row in rows], height=0.6)
    axis.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
    axis.margins(x=0.15)
    axis.invert_yaxis()


def rounded(row: Row, digits: dict[str, int]) -> Row:
    """Return a row with rounded numbers, by digits of the columns."""
    return {k: round(v, digits[k]) if k in digits else v for k, v in row.items()}


def length_summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `eval length`, rounded."""
    return [rounded(row, {**DIGITS, "ms": 2}) for row in rows]


def length_notes(rows: Sequence[Row]) -> list[str]:
    """Return the note beneath the table on methods whose operations are not counted."""
    uncounted = [row for row in rows if row["level"] == "attention" and math.isnan(row.get("of peak", 0.0))]
    names = ", ".join(unique(uncounted, "method"))
    counted = "operations are counted for attention without a decay, whose features one matrix product computes"
    return [f"`of peak` is nan for {names}: {counted}."] if names else []


def plot_length(rows: Sequence[Row]) -> Figure:
    """Draw time and memory over the tokens on logarithmic axes, two panels for each level."""
    return length_figure({level: select(rows, level=level) for level in unique(rows, "level")}, "method")


def decay_summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `eval decay`, rounded and ordered by attention."""
    ordered = sorted(rows, key=lambda row: (row["attention"], row["tokens"]))
    return [{**rounded(row, {**DIGITS, "ms": 1}), "error": f"{row['error']:.2%}"} for row in ordered]


def plot_decay(rows: Sequence[Row]) -> Figure:
    """Draw time and memory over the tokens, on logarithmic axes."""
    return length_figure({"": rows}, "attention")


def plot_steps(rows: Sequence[Row]) -> Figure:
    """Draw the ratio of each model to the plain ViT as a dot, for each of its encodings."""
    models, encodings = unique(rows, "model"), unique(rows, "encoding")
    figure = new_figure(width=5.0, height=1.0 + 0.2 * len(models))
    axis = figure.subplots()
    for encoding, style in line_styles(encodings).items():
        dots = select(rows, encoding=encoding)
        places = [models.index(row["model"]) for row in dots]
        axis.plot([row["to plain"] for row in dots], places, **{**style, "linestyle": "none"}, label=encoding)
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    label_rows(axis, models)
    legend_above(figure)
    axis.set(xlabel="training step over a plain ViT's (median)")
    return figure


def plot_recipes(rows: Sequence[Row]) -> Figure:
    """Draw the times relative to the plain ViT as dots; a recipe without a plain ViT to compare with is left out."""
    rows = [row for row in rows if row["to plain"] != ""]
    figure = new_figure(width=5.0, height=1.1 + 0.2 * len(rows))
    axis = figure.subplots()
    columns = {"the recipe": "to plain", "with performer-pytorch": f"{PERFORMER} to plain"}
    for (label, column), style in zip(columns.items(), line_styles(list(columns)).values(), strict=True):
        points = [(row[column], place) for place, row in enumerate(rows) if row[column] != ""]
        axis.plot(*zip(*points, strict=True), **{**style, **HOLLOW}, label=label) if points else None
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    label_rows(axis, [row["recipe"] for row in rows])
    axis.set(xlabel="training step over a plain ViT's (median)")
    legend_above(figure)
    return figure


def plot_packing(rows: Sequence[Row]) -> Figure:
    """Draw the ratio of times for each range of sides, beside the ratio of tokens."""
    figure = new_figure(width=5.0, height=2.8)
    axis = figure.subplots()
    names = unique(rows, "sides")
    for attention, style in line_styles(unique(rows, "attention")).items():
        own = {row["sides"]: row["packed to padded"] for row in select(rows, attention=attention)}
        axis.plot(range(len(own)), [own[name] for name in own], label=attention, **style)
    tokens = {row["sides"]: row["tokens to padded"] for row in rows}
    axis.plot(range(len(names)), [tokens[name] for name in names], "_", color=BLACK, markersize=20, label="tokens")
    axis.axhline(1, color=GREY, linewidth=0.8, zorder=0)
    axis.set_ylim(bottom=0)
    axis.set_xticks(range(len(names)), names)
    axis.set(xlabel="sides of the images in pixels", ylabel="time packed over padded")
    legend_above(figure)
    return figure


LENGTH = Shown(plot_length, length_summary, length_notes, names=("method", "level"))
DECAY = Shown(plot_decay, decay_summary, names=("attention",))
STEPS = Shown(plot_steps)
RECIPES = Shown(plot_recipes, lambda rows: [*with_units(rows)], names=("recipe",))
PACKING = Shown(plot_packing)
