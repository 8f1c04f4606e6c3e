"""Accuracy at resolutions that a model was not trained at."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from eval.checkpoints import accuracies, add_arguments, load_models, result_directory
from eval.report import Row, mark_training, save_figure
from eval.seeds import over_seeds, stem
from train.data.sizes import ascending

__all__ = ["HELP", "add_arguments", "plot", "result_directory", "rows", "summary"]

HELP = "accuracy per resolution, with 95 %% intervals, beside the null score of the split"


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    yield from accuracies(load_models(options), options, device)


def summary(found: Sequence[Row]) -> list[Row]:
    """One row a model, all its seeds together; one column a resolution; the null score last."""
    found = over_seeds(found)
    sizes = ascending(row["resolution"] for row in found)
    models = list(dict.fromkeys(row["model"] for row in found))
    cells = {(r["model"], r["resolution"]): f"{r['accuracy']:.1f} ({r['low']:.1f}-{r['high']:.1f})" for r in found}
    lines: list[Row] = [
        {"accuracy in %": model, **{f"{size} px": cells.get((model, size), "") for size in sizes}} for model in models
    ]
    null = max(row["null"] for row in found)
    return [*lines, {"accuracy in %": "null", **{f"{size} px": f"{null:.1f}" for size in sizes}}]


def plot(found: Sequence[Row], path: Path) -> None:
    """Accuracy over resolution, the training resolution marked: of several seeds each, thin, and their mean; of one its
    interval."""
    from matplotlib.figure import Figure

    models: dict[str, list[Row]] = {}
    for row in sorted(found, key=lambda row: row["resolution"].side):
        models.setdefault(stem(row["model"]), []).append(row)
    many = len(models) > 5  # then the legend is beside the curves
    figure = Figure(figsize=(9.5, 4.8) if many else (6, 3.8), layout="constrained")
    axis = figure.subplots()
    axis.set_xscale("log", base=2)
    for number, rows in enumerate(models.values()):
        turn, aside = number // 10 % 4, 1.006 ** (number - (len(models) - 1) / 2)  # or they would lie on each other
        look: dict[str, Any] = {"color": f"C{number % 10}", "ls": ("-", "--", "-.", ":")[turn]}
        seeds, mean = list(dict.fromkeys(row["model"] for row in rows)), over_seeds(rows)
        for seed in seeds if len(seeds) > 1 else []:
            own = [row for row in rows if row["model"] == seed]
            axis.plot(
                [r["resolution"].side * aside for r in own], [r["accuracy"] for r in own], lw=0.8, alpha=0.5, **look
            )
        error = [[r["accuracy"] - r["low"] for r in mean], [r["high"] - r["accuracy"] for r in mean]]
        axis.errorbar(
            [r["resolution"].side * aside for r in mean],
            [r["accuracy"] for r in mean],
            error if len(seeds) == 1 else None,
            capsize=2,
            elinewidth=1,
            label=mean[0]["model"],
            marker="os^D"[turn],
            **look,
        )
    axis.axhline(found[0]["null"], color="grey", linestyle=":", label="null")
    mark_training(axis, found)
    sizes = ascending(row["resolution"] for row in found)
    axis.set(xlabel="resolution in pixels", ylabel="accuracy in %")
    labels: dict[float, str] = {}  # of rectangles with one area, which share a place, one above the other
    for size in sizes:
        labels[size.side] = f"{labels[size.side]}\n{size}" if size.side in labels else str(size)
    axis.set_xticks(list(labels), list(labels.values()))
    lowest = min(found[0]["null"], *(row["low"] for row in over_seeds(found)), *(row["accuracy"] for row in found))
    axis.set_ylim(bottom=max(-2, 10 * ((lowest - 2) // 10)))  # no line or marker on the frame
    if many:
        figure.legend(loc="outside right upper", fontsize=8)
    else:
        axis.legend(fontsize=8)
    save_figure(figure, path)
