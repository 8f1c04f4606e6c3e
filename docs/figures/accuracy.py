"""Draw the README's figure from the results of the arrow task: error against image size.

python -m docs.figures.accuracy
"""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from docs.figures.style import REPOSITORY, main
from eval.report import read_csv
from train.figure_style import BLUE, GREY, VERMILLION

RESULTS = REPOSITORY / "experiments" / "arrow" / "resolution.csv"
# title of a panel -> model in the file -> label, colour, image size of the label, and its height in points.
PANELS = {
    "baseline recipe, 6,000 steps of 16": {
        "recipe": ("linear, 5 seeds", BLUE, 168, 8),
        "recipe-softmax": ("softmax, 3 seeds", VERMILLION, 168, -14),
    },
    "shorter training, 2,000 steps of 32": {
        "linear-circulant-string-plain": ("linear, 5 seeds", BLUE, 168, -14),
        "softmax-circulant-string-plain": ("softmax, 3 seeds", VERMILLION, 168, -14),
    },
}
TEXT: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9}
NONE = 0.02  # where an error of zero is drawn, in %


def read_errors() -> dict[str, dict[int, list[float]]]:
    """Return the error of each seed in %, by model and image size."""
    errors: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_csv(RESULTS)[1]:
        model = row["model"].rpartition("-seed")[0]
        if any(model in lines for lines in PANELS.values()):
            errors[model][int(row["resolution"])].append(100 - float(row["accuracy"]))
    return {model: dict(sorted(sizes.items())) for model, sizes in errors.items()}


def draw() -> Figure:
    """Return the figure: a panel for each training, with bands over seeds, and the majority baseline."""
    errors = read_errors()
    figure, panels = plt.subplots(1, len(PANELS), figsize=(7.2, 3.2), sharey=True)
    for axes, (title, lines) in zip(panels, PANELS.items(), strict=True):
        for model, (label, colour, place, height) in lines.items():
            heights = {size: max(mean(seeds), NONE) for size, seeds in errors[model].items()}
            low, high = ([max(f(seeds), NONE) for seeds in errors[model].values()] for f in (min, max))
            axes.fill_between(list(heights), low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(list(heights), list(heights.values()), color=colour, marker="o", markersize=4, linewidth=1.8)
            axes.annotate(label, (place, heights[place]), (-2, height), color=colour, **TEXT)
        axes.axhline(100 - 44.2, color=GREY, linewidth=1, linestyle=":")
        axes.annotate("majority baseline", (552, 55.8), (-2, 4), color=GREY, ha="right", **TEXT)
        axes.axvspan(104, 112, color=GREY, alpha=0.15, linewidth=0)
        axes.annotate("training\nsize", (115, 12), color=GREY, fontsize=9)
        axes.set(xscale="log", yscale="log", ylim=(NONE / 2.5, 130), xlim=(100, 590), title=title)
        sizes = sorted(errors[next(iter(lines))])
        axes.set_xticks(sizes, [f"{size}\n{(size // 12) ** 2:,}" for size in sizes], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_yticks([NONE, 0.1, 1, 10, 100], ["none", "0.1", "1", "10", "100"])
        axes.set_yticks([], minor=True)
        axes.set_xlabel("image size in pixels, and tokens")
    panels[0].set_ylabel("error in %")
    return figure


if __name__ == "__main__":
    main({"accuracy": draw}, "python -m docs.figures.accuracy")
