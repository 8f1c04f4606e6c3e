"""Draw the README's figure: accuracy on larger images, with and without a distance decay, and the time of an image.

python -m docs.figures.overview
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.figures.style import REPOSITORY, main
from eval.report import read_csv
from train.figure_style import BLUE, GREY, VERMILLION

EXPERIMENTS = REPOSITORY / "experiments"
ACCURACY, COST = EXPERIMENTS / "arrow" / "resolution.csv", EXPERIMENTS / "speed" / "decay" / "model.csv"
TEXT: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9}
NONE = 0.02  # where an error of zero is drawn, in %
DECAY: dict[str, Any] = {"linestyle": "--", "marker": "s"}


class Line(NamedTuple):
    """A line of a panel.

    Attributes:
        label: text beside it.
        colour: colour of line and text.
        place: size or number of tokens beside which the text stands.
        offset: offset of the text from the line there, in points.
        style: other options of the line.
    """

    label: str
    colour: str
    place: int
    offset: tuple[int, int]
    style: Mapping[str, Any] = {}


# title of a panel -> model in the file -> its line.
ERRORS = {
    "baseline recipe": {
        "recipe": Line("linear", BLUE, 168, (-2, 8)),
        "recipe-softmax": Line("softmax", VERMILLION, 168, (-2, -14)),
    },
    "shorter training; dashed: with decay": {
        "linear-circulant-string-plain": Line("linear", BLUE, 552, (-26, 5)),
        "linear-circulant-string-lf": Line("", BLUE, 276, (4, 0), DECAY),
        "softmax-circulant-string-plain": Line("softmax", VERMILLION, 168, (-2, -14)),
        "softmax-circulant-string-lf": Line("", VERMILLION, 276, (4, 0), DECAY),
    },
}
TIMES = {
    "linear-circulant-string-plain": Line("linear", BLUE, 1024, (4, -12)),
    "linear-circulant-string-lf": Line("with decay", BLUE, 4096, (7, -2), DECAY),
    "softmax-circulant-string-plain": Line("softmax", VERMILLION, 4096, (7, -13)),
    "softmax-circulant-string-lf": Line("with decay", VERMILLION, 4096, (7, 5), DECAY),
}


def read(file: Path, x: str, y: str, part: Mapping[str, str]) -> dict[str, dict[int, list[float]]]:
    """Return the values of each seed, by model and x.

    Args:
        file: CSV file of an evaluation.
        x, y: columns of both axes.
        part: columns and their values of the rows to take.
    """
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_csv(file)[1]:
        if part.items() <= row.items():
            values[row["model"].rpartition("-seed")[0]][int(row[x])].append(float(row[y]))
    return {model: dict(sorted(points.items())) for model, points in values.items()}


def draw_line(axes: Axes, line: Line, points: Mapping[int, list[float]], least: float = 0.0) -> None:
    """Draw the means over seeds, a band from the lowest to the highest where there are several, and the label."""
    heights = {x: max(mean(seeds), least) for x, seeds in points.items()}
    if any(len(seeds) > 1 for seeds in points.values()):
        low, high = ([max(f(seeds), least) for seeds in points.values()] for f in (min, max))
        axes.fill_between(list(heights), low, high, color=line.colour, alpha=0.12, linewidth=0)
    style = {"marker": "o", "markersize": 4, "linewidth": 1.8, **line.style}
    axes.plot(list(heights), list(heights.values()), color=line.colour, **style)
    axes.annotate(line.label, (line.place, heights[line.place]), line.offset, color=line.colour, **TEXT)


def draw_errors(axes: Axes, title: str, lines: Mapping[str, Line]) -> None:
    """Draw the error of models against image size, with the majority baseline."""
    accuracies = read(ACCURACY, "resolution", "accuracy", {})
    for model, line in lines.items():
        draw_line(axes, line, {x: [100 - each for each in seeds] for x, seeds in accuracies[model].items()}, NONE)
    axes.axhline(100 - 44.2, color=GREY, linewidth=1, linestyle=":")
    axes.annotate("majority baseline", (552, 55.8), (-2, 4), color=GREY, ha="right", **TEXT)
    axes.axvspan(104, 112, color=GREY, alpha=0.15, linewidth=0)
    axes.annotate("training\nsize", (115, 9), color=GREY, fontsize=9)
    axes.set(xscale="log", yscale="log", ylim=(NONE / 2.5, 130), xlim=(100, 600), title=title)
    sizes = sorted(accuracies[next(iter(lines))])
    axes.set_xticks(sizes, [f"{size}\n{(size // 12) ** 2:,}" for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks([NONE, 0.1, 1, 10, 100], ["none", "0.1", "1", "10", "100"])
    axes.set_yticks([], minor=True)
    axes.set(xlabel="image size in pixels, and tokens", ylabel="error in %")


def draw_times(axes: Axes) -> None:
    """Draw the time of one image against the number of tokens."""
    times = read(COST, "tokens", "value", {"part": "cost", "quantity": "milliseconds"})
    for model, line in TIMES.items():
        draw_line(axes, line, times[model])
    tokens = sorted(times[next(iter(TIMES))])
    axes.set(xscale="log", yscale="log", title="time of one image, two CPU cores", xlim=(220, 11500))
    axes.set_xticks(tokens, [f"{count:,}" for count in tokens], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks([10, 100, 1000], ["0.01", "0.1", "1"])
    axes.set_yticks([], minor=True)
    axes.set(xlabel="tokens", ylabel="seconds")


def draw() -> Figure:
    """Return the figure: two panels of errors, and one of times."""
    figure, panels = plt.subplots(1, 3, figsize=(10.4, 3.2))
    for axes, (title, lines) in zip(panels, ERRORS.items(), strict=False):
        draw_errors(axes, title, lines)
    draw_times(panels[-1])
    return figure


if __name__ == "__main__":
    main({"overview": draw}, "python -m docs.figures.overview")
