"""Draw the README's figure from the results of the arrow task: error against image size.

python -m docs.figures.accuracy
"""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from docs.figures.style import BLUE, GREY, RED, REPOSITORY, main
from eval.report import read_csv

RESULTS = REPOSITORY / "experiments" / "arrow" / "resolution.csv"
# model in the file -> label, colour, line, image size that the label stands at, and its side of that point.
LINES = {
    "recipe": ("linear, 5 seeds", BLUE, "-", 168, "left"),
    "recipe-softmax": ("softmax, 3 seeds", RED, "-", 552, "right"),
    "linear-circulant-string-plain": ("linear, shorter training, 5 seeds", BLUE, "--", 168, "left"),
    "softmax-circulant-string-plain": ("softmax, shorter training, 3 seeds", RED, "--", 552, "right"),
}
TEXT: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9}
NONE = 0.012  # where an error of zero is drawn, in %


def read_errors() -> dict[str, dict[int, list[float]]]:
    """Return the error of each seed in %, by model and image size."""
    errors: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_csv(RESULTS)[1]:
        model = row["model"].rpartition("-seed")[0]
        if model in LINES:
            errors[model][int(row["resolution"])].append(100 - float(row["accuracy"]))
    return {model: dict(sorted(sizes.items())) for model, sizes in errors.items()}


def draw() -> Figure:
    """Return the figure: four lines with bands, the majority baseline, and zero at the foot of the logarithmic axis."""
    errors = read_errors()
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for model, (label, colour, line, place, side) in LINES.items():
        heights = {size: max(mean(seeds), NONE) for size, seeds in errors[model].items()}
        low, high = ([max(f(seeds), NONE) for seeds in errors[model].values()] for f in (min, max))
        axes.fill_between(list(heights), low, high, color=colour, alpha=0.18 if line == "-" else 0.08, linewidth=0)
        style = {"linestyle": line, "color": colour, "marker": "o", "markersize": 4, "linewidth": 1.8}
        axes.plot(list(heights), list(heights.values()), clip_on=False, **style)
        above = 16 if line == "--" and side == "left" else 7  # over a rising line
        axes.annotate(label, (place, heights[place]), (-2, above), color=colour, ha=side, **TEXT)
    axes.axhline(100 - 44.2, color=GREY, linewidth=1, linestyle=":")
    axes.annotate("majority baseline", (552, 55.8), (-2, 4), color=GREY, ha="right", **TEXT)
    axes.axvspan(104, 112, color=GREY, alpha=0.15, linewidth=0)
    axes.annotate("training\nsize", (113, 12), color=GREY, fontsize=9)
    axes.set(xscale="log", yscale="log", ylim=(NONE, 130), xlim=(100, 575), ylabel="error in %", xlabel="image size")
    sizes = sorted(errors["recipe"])
    axes.set_xticks(sizes, [f"{size} px\n{(size // 12) ** 2:,} tokens" for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks([NONE, 0.1, 1, 10, 100], ["none", "0.1", "1", "10", "100"])
    axes.set_yticks([], minor=True)
    return figure


if __name__ == "__main__":
    main({"accuracy": draw}, "python -m docs.figures.accuracy")
