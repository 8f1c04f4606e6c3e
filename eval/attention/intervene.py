"""What does an intervention on a trained model do to its accuracy at each resolution?

A loss of accuracy has the cause whose removal cures it. Nothing is trained.

Columns: `model`, `intervention` (`as trained`, or its title), `resolution` (pixels), `accuracy`, `low` and `high` (%),
`images`, `majority baseline` (%), `trained at` (pixels).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from matplotlib.figure import Figure

from eval import checkpoints
from eval.attention.interventions import GROUPS, interventions
from eval.attention.model_changes import Intervention, changed
from eval.report import MAJORITY, Row, error_bars, select, unique
from train.data.sizes import ascending

UNTOUCHED = "as trained"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval intervene`."""
    checkpoints.add_arguments(parser, split="val", images=200)
    parser.add_argument("--groups", nargs="+", choices=tuple(GROUPS), default=list(GROUPS), help="of interventions")


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model, intervention and resolution."""
    for trained in checkpoints.load_models(options):
        vit = trained.classifier.vit
        by_title: dict[str, Intervention] = {UNTOUCHED: lambda vit, changes: None}
        by_title |= interventions(vit, options.groups)
        for title, intervention in by_title.items():
            for size in options.resolutions:
                with changed(vit, intervention):
                    right, total = checkpoints.count_right(trained, size, options, device, f", {title}")
                yield {
                    "model": checkpoints.name_of(trained.path),
                    "intervention": title,
                    "resolution": size,
                    **checkpoints.accuracy_columns(trained, right, total, options.split),
                }


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each model and intervention: accuracy at each resolution, and its change."""
    sizes = ascending(row["resolution"] for row in rows)
    cells = {(r["model"], r["intervention"], r["resolution"]): r["accuracy"] for r in rows}
    lines: list[Row] = []
    for model, name in dict.fromkeys((r["model"], r["intervention"]) for r in rows):
        line = {"model": model, "accuracy in %": name}
        for size in sizes:
            change = cells[model, name, size] - cells[model, UNTOUCHED, size]
            line[f"{size} px"] = f"{cells[model, name, size]:.1f}" + (f" ({change:+.1f})" if name != UNTOUCHED else "")
        lines.append(line)
    return lines


def plot(rows: Sequence[Row]) -> Figure:
    """Draw bars of the accuracy under each intervention, a panel a resolution; a line is the model as trained."""
    sizes = ascending(row["resolution"] for row in rows)
    names, models = unique(rows, "intervention"), unique(rows, "model")
    figure = Figure(figsize=(2.2 + 2.6 * len(sizes), 1.2 + 0.22 * len(names) * len(models)), layout="tight")
    axes = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    width = 0.8 / len(models)
    for axis, size in zip(axes, sizes, strict=True):
        for i, model in enumerate(models):
            bars = select(rows, model=model, resolution=size)
            heights = [names.index(row["intervention"]) + (i + 0.5) * width - 0.4 for row in bars]
            accuracies = [row["accuracy"] for row in bars]
            axis.barh(heights, accuracies, width, xerr=error_bars(bars), label=model, color=f"C{i}")
            axis.axvline(accuracies[0], color=f"C{i}", linewidth=0.8)
        axis.axvline(rows[0][MAJORITY], color="grey", linestyle=":")
        axis.set(title=f"{size} px", xlim=(0, 102), xlabel="accuracy in %", yticks=range(len(names)))
    axes[0].set_yticklabels(names, fontsize=7)
    axes[0].invert_yaxis()
    if len(models) > 1:
        axes[0].legend(fontsize=6)
    return figure
