"""Tables and figures of the evaluations of speed, from their rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import label_rows
from eval.plotting.axes import legend_above
from eval.plotting.lengths import length_figure
from eval.plotting.style import BLACK, GREY, line_styles, new_figure
from eval.report import Row, select, unique

PLAIN = "plain ViT"  # model that others are compared with
OWN, PERFORMER = "recipe", "performer-pytorch"  # the models that are timed for each recipe
FORMER = "circulant-string"  # encoding of all other models in files of `eval steps` without that column
HOLLOW = {"linestyle": "none", "markerfacecolor": "none"}  # equal values of two models stay visible
DIGITS = {"to plain": 2, "tokens/s": 0, "to softmax": 3, "peak MiB": 1, "error to softmax": 4, "of peak": 3}
DIGITS |= {"time exponent": 2, "memory exponent": 2}


def rounded(row: Row, digits: dict[str, int]) -> Row:
    """Return a row with rounded numbers, by digits of the columns."""
    return {k: round(v, digits[k]) if k in digits else v for k, v in row.items()}


def length_summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `eval length`, rounded."""
    return [rounded(row, {**DIGITS, "ms": 2}) for row in rows]


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
    rows = [{"encoding": "absolute" if row["model"] == PLAIN else FORMER, **row} for row in rows]
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


LENGTH = Shown(plot_length, length_summary, names=("method", "level"))
DECAY = Shown(plot_decay, decay_summary, names=("attention",))
STEPS = Shown(plot_steps)
RECIPES = Shown(plot_recipes, names=("recipe",))
PACKING = Shown(plot_packing)
