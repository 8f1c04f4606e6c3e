"""How accurate are models at resolutions that they were not trained at?

Columns: `model`, `resolution` (pixels), `tokens`, `accuracy`, `low` and `high` (%, with its 95 % interval by Wilson
over the images), `images`, `majority baseline` (% of the most frequent class), `trained at` (pixels).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.checkpoints import accuracies, add_arguments, load_models
from eval.report import MAJORITY, Row, error_bars, mark_training, select, unique
from eval.statistics import mean_over_seeds, without_seed
from train.data.sizes import Size, ascending

__all__ = ["add_arguments", "evaluate", "plot", "summary"]

LINE_STYLES, MARKERS = ("-", "--", "-.", ":"), "os^D"


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model and resolution."""
    yield from accuracies(load_models(options), options, device)


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each model, all its seeds together, with a column for each resolution; the baseline last."""
    rows = mean_over_seeds(rows)
    sizes = ascending(row["resolution"] for row in rows)
    cells = {(r["model"], r["resolution"]): f"{r['accuracy']:.1f} ({r['low']:.1f}-{r['high']:.1f})" for r in rows}
    lines: list[Row] = [
        {"accuracy in %": model, **{f"{size} px": cells.get((model, size), "") for size in sizes}}
        for model in unique(rows, "model")
    ]
    baseline = max(row[MAJORITY] for row in rows)
    return [*lines, {"accuracy in %": MAJORITY, **{f"{size} px": f"{baseline:.1f}" for size in sizes}}]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over resolution, with the training resolution marked.

    A model with several seeds has a thin line for each and a thick one for their mean; one with a single seed has its
    interval.
    """
    models: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["resolution"].side):
        models.setdefault(without_seed(row["model"]), []).append(row)
    many = len(models) > 5  # then the legend is beside the curves
    figure = Figure(figsize=(9.5, 4.8) if many else (6, 3.8), layout="constrained")
    axis = figure.subplots()
    axis.set_xscale("log", base=2)
    for number, model_rows in enumerate(models.values()):
        shift = 1.006 ** (number - (len(models) - 1) / 2)  # or the models would lie on each other
        draw_model(axis, model_rows, number, shift)
    axis.axhline(rows[0][MAJORITY], color="grey", linestyle=":", label=MAJORITY)
    mark_training(axis, rows)
    axis.set(xlabel="resolution in pixels", ylabel="accuracy in %")
    labels = tick_labels(ascending(row["resolution"] for row in rows))
    axis.set_xticks(list(labels), list(labels.values()))
    lowest = min(rows[0][MAJORITY], *(row["low"] for row in mean_over_seeds(rows)), *(row["accuracy"] for row in rows))
    axis.set_ylim(bottom=max(-2, 10 * ((lowest - 2) // 10)))  # no line or marker on the frame
    if many:
        figure.legend(loc="outside right upper", fontsize=8)
    else:
        axis.legend(fontsize=8)
    return figure


def draw_model(axis: Axes, rows: Sequence[Row], number: int, shift: float) -> None:
    """Draw the seeds of one model and their mean.

    Args:
        axis: where to draw.
        rows: of all seeds, by rising resolution.
        number: of the model, which gives colour, line style and marker.
        shift: factor on the resolutions.
    """
    cycle = number // 10 % 4
    style: dict[str, Any] = {"color": f"C{number % 10}", "ls": LINE_STYLES[cycle]}
    seeds, mean = unique(rows, "model"), mean_over_seeds(rows)
    for seed in seeds if len(seeds) > 1 else []:
        points = select(rows, model=seed)
        sides = [row["resolution"].side * shift for row in points]
        axis.plot(sides, [row["accuracy"] for row in points], lw=0.8, alpha=0.5, **style)
    axis.errorbar(
        [row["resolution"].side * shift for row in mean],
        [row["accuracy"] for row in mean],
        error_bars(mean) if len(seeds) == 1 else None,
        capsize=2,
        elinewidth=1,
        label=mean[0]["model"],
        marker=MARKERS[cycle],
        **style,
    )


def tick_labels(sizes: Sequence[Size]) -> dict[float, str]:
    """Return the label at each place of the axis; rectangles of one area share a place, one above the other."""
    labels: dict[float, str] = {}
    for size in sizes:
        labels[size.side] = f"{labels[size.side]}\n{size}" if size.side in labels else str(size)
    return labels
