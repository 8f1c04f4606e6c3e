"""Tables and figures of the evaluations of encodings, from their rows alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import label_rows
from eval.plotting.axes import count_axis, legend_above, note_below, plain_logarithm
from eval.plotting.style import BLUE, GREY, VERMILLION, line_styles, new_figure, panels
from eval.report import Row, select, unique

SMALLEST = 1e-17  # value at which a change of exactly zero is drawn
VERDICTS = {
    "exact": "0",
    "one draw": "not 0 in one draw",
    "fails by design": "not 0, by design",
    "not known": "not known without generators",
}
# Label, colour and marker of each kind of expectation; a name with several, by the number of axes, has the first.
KINDS = {
    "fails by design": ("not zero, by design", VERMILLION, "X"),
    "one draw": ("not zero in one draw", GREY, "D"),
    "not known": ("not known", GREY, "s"),
    "exact": ("zero but for rounding", BLUE, "o"),
}
RATIOS = {"step to rope": "training step", "inference to rope": "folded inference"}
SMALLEST_FONT = 4.5  # smallest size of the numbers in points, below which they are left out
SAME = 1e-6  # error below which a fit counts as exact


def draw_counts(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of draws that were averaged over, in ascending order, from the quantities `N draws`."""
    counted = (str(row["quantity"]).split() for row in rows)
    return sorted({int(words[0]) for words in counted if words[-1] == "draws" and words[0].isdigit()})


def invariance_summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each name: its largest change, and the expected one."""
    lines: list[Row] = []
    for part, name in dict.fromkeys((row["part"], row["name"]) for row in rows):
        same = select(rows, part=part, name=name)
        if part == "features" and len(same) > 1:
            spread = {row["quantity"]: f"{row['value']:.2g}" for row in same}
            draws = draw_counts(same)
            few, many = f"{draws[0]} draws", f"{draws[-1]} draws"
            text = f"{spread[few]} with {few}, {spread[many]} with {many}; bias {spread['bias in standard errors']} se"
            lines.append({"what": part, "name": name, "relative change": text, "expected": "falls as 1/sqrt(draws)"})
            continue
        largest = max(row["value"] for row in same)
        expected = {row["expected"] for row in same}
        verdict = VERDICTS.get(next(iter(expected)), "") if len(expected) == 1 else "not 0, by design"
        if any(row["holds"] is False for row in same):
            verdict += " (DOES NOT HOLD)"
        lines.append({"what": part, "name": name, "relative change": f"{largest:.1e}", "expected": verdict})
    return lines


def plot_invariance(rows: Sequence[Row]) -> Figure:
    """Draw the largest change of a score for each encoding, and the spread of the estimates over draws.

    For checkpoints only the change of the logits is drawn.
    """
    draws = select(rows, expected="1/sqrt(draws)")
    scores = select(rows, part="scores" if draws else "models")
    names = unique(scores, "name")
    figure, axes = panels(2 if draws else 1, width=6.75 if draws else 5.0, height=1.1 + 0.16 * max(len(names), 10))
    draw_changes(axes[0], scores, names, "a score" if draws else "the logits")
    if draws:
        draw_spread(axes[1], draws)
    note_below(figure, "changes under a common move of all positions, relative")
    return figure


def draw_changes(axis: Axes, rows: Sequence[Row], names: Sequence[str], what: str) -> None:
    """Draw the largest change for each name: a dot where it should be zero, other markers where it need not."""
    expected = {name: {row["expected"] for row in select(rows, name=name)} for name in names}
    kind_of = {name: next(kind for kind in KINDS if kind in expected[name]) for name in names}
    for kind, (label, colour, marker) in reversed(KINDS.items()):
        heights = [i for i, name in enumerate(names) if kind_of[name] == kind]
        largest = [max(max(row["value"] for row in select(rows, name=names[i])), SMALLEST) for i in heights]
        if heights:
            axis.plot(largest, heights, marker, color=colour, label=label)
    axis.set(xscale="log", xlabel=f"largest change of {what}")
    if any(row["value"] < SMALLEST for row in rows):
        axis.set_xticks([SMALLEST, 1e-12, 1e-6, 1], ["0", "$10^{-12}$", "$10^{-6}$", "1"])
    else:
        axis.set_xticks([1e-16, 1e-8, 1])
    axis.set_xticks([], minor=True)
    label_rows(axis, [in_words(name) for name in names])
    legend_over(axis, 1)


def in_words(name: str) -> str:
    """Return a name with its options as words: `liere, block size 2` for `liere block_size=2`."""
    name = name.replace(" generator=", ", ")
    return re.sub(r" (\w+)=", lambda option: f", {option[1].replace('_', ' ')} ", name)


def draw_spread(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the spread of the estimates of each feature map over the number of draws."""
    draws = draw_counts(rows)
    for name, style in line_styles(unique(rows, "name")).items():
        axis.plot(draws, [row["value"] for row in select(rows, name=name)], label=name, **style)
    fall = [draws[0] / n**0.5 for n in draws]
    axis.plot(draws, fall, color=GREY, linewidth=0.8, label="1/sqrt(draws)")
    count_axis(axis, draws, "draws averaged over")
    axis.set(yscale="log", ylabel="change of the estimate")
    plain_logarithm(axis.yaxis)
    legend_over(axis, 2)


def legend_over(axis: Axes, columns: int) -> None:
    """Place the legend above its panel, so that it hides no points."""
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axis.legend(ncols=columns, fontsize=6, handletextpad=0.4, columnspacing=1.0, **place)


def plot_latency(rows: Sequence[Row]) -> Figure:
    """Draw both ratios for each encoding as dots, one above the other, with outliers as numbers at the edge."""
    figure = new_figure(width=5.0, height=1.0 + 0.2 * len(rows))
    axis = figure.subplots()
    edge = edge_of([row[column] for row in rows for column in RATIOS])
    for (column, label), style, up in zip(RATIOS.items(), line_styles(list(RATIOS)).values(), (-1, 1), strict=True):
        places = [(row[column], height + 0.17 * up) for height, row in enumerate(rows)]
        shown = [(value, height) for value, height in places if value <= edge]
        axis.plot(*zip(*shown, strict=True), label=label, **{**style, "linestyle": "none"})
        for value, height in (place for place in places if place[0] > edge):
            text = {"ha": "right", "va": "center", "fontsize": 7, "color": style["color"]}
            axis.text(0.99, height, f"{value:.3g} →", transform=axis.get_yaxis_transform(), **text)
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    axis.margins(x=0.08)
    label_rows(axis, [row["encoding"] for row in rows])
    axis.set(xlabel="time relative to RoPE")
    legend_above(figure)
    beyond = "; numbers with an arrow are beyond the axis" if axis.texts else ""
    note_below(figure, f"medians of the rounds{beyond}")
    return figure


def edge_of(values: Sequence[float]) -> float:
    """Return the end of an axis: twice the median if at most one value in ten is above it, else the maximum."""
    far = 2 * median(values)
    return far if sum(value > far for value in values) <= len(values) / 10 else max(values)


def redundancy_summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each fitted encoding, with a column for each target."""
    targets = unique(rows, "target")
    cells = {(row["fitted"], row["target"]): "0" if row["covers"] else f"{row['error']:.2f}" for row in rows}
    letters = letters_of(targets)
    return [
        {"error left when fitted to": f"{letters.get(name, '')} {name}".strip()}
        | {letters[target]: cells.get((name, target), "") for target in targets}
        for name in unique(rows, "fitted")
    ]


def letters_of(targets: Sequence[str]) -> dict[str, str]:
    """Return the letter of each target."""
    return {target: chr(ord("a") + i) for i, target in enumerate(targets)}


def plot_redundancy(rows: Sequence[Row]) -> Figure:
    """Draw the table as an image, with columns labelled by the letters of the rows."""
    targets = unique(rows, "target")
    fitted = [name for name in unique(rows, "fitted") if name in targets]  # the control has only one target
    cells = {(row["fitted"], row["target"]): row["error"] for row in rows}
    values = np.array([[cells[name, target] for target in targets] for name in fitted])
    figure = new_figure(width=6.75, height=1.6 + 0.28 * len(fitted))
    axis = figure.subplots()
    axis.grid(False)
    size = min(6.0, 72 * (figure.get_figwidth() - 2.2) / len(targets) / 1.8)  # three digits in a cell
    image = axis.imshow(values, cmap="viridis_r", vmin=0, aspect="auto")
    for i, j in np.ndindex(*values.shape):
        text = "0" if values[i, j] < SAME else f"{values[i, j]:.2f}".removeprefix("0")
        color = "white" if values[i, j] > values.max() / 2 else "black"
        if size >= SMALLEST_FONT:
            axis.text(j, i, text, ha="center", va="center", fontsize=size, color=color)
    letters = letters_of(targets)
    axis.set_xticks(range(len(targets)), list(letters.values()))
    axis.set_yticks(range(len(fitted)), [f"{name}  {letters[name]}" for name in fitted])
    axis.set(xlabel="target", ylabel="fitted, with a free basis")
    bar = {"location": "right", "pad": 0.02} if size >= SMALLEST_FONT else {"location": "bottom"}
    figure.colorbar(image, label="relative error left in R(r)", aspect=30, **bar)
    return figure


INVARIANCE = Shown(plot_invariance, invariance_summary, names=("name",))
LATENCY = Shown(plot_latency, names=("encoding",))
REDUNDANCY = Shown(plot_redundancy, redundancy_summary, names=("fitted", "target"))
