"""What an intervention on a trained model does to its accuracy at each resolution: the cause of a loss, by its cure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from eval import checkpoints
from eval.changes import Intervention
from eval.interventions import GROUPS, interventions
from eval.report import Row, save_figure
from train.data.sizes import ascending

HELP = "accuracy per resolution under interventions on trained models, without training"
UNTOUCHED = "as trained"
result_directory = checkpoints.result_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    checkpoints.add_arguments(parser, split="val", images=200)
    parser.add_argument("--groups", nargs="+", choices=tuple(GROUPS), default=list(GROUPS), help="of interventions")


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """A row for each model, intervention and resolution."""
    for trained in checkpoints.load_models(options):
        vit = trained.classifier.vit
        changes: dict[str, Intervention] = {UNTOUCHED: lambda vit: nullcontext()}
        for name, change in {**changes, **interventions(vit, options.groups)}.items():
            for size in options.resolutions:
                with change(vit):
                    right, total = checkpoints.accuracy(trained, size, options, device, f", {name}")
                yield {
                    "model": checkpoints.name_of(trained.path),
                    "intervention": name,
                    "resolution": size,
                    **checkpoints.score(trained, right, total, options.split),
                }


def summary(found: Sequence[Row]) -> list[Row]:
    """A row for each model and intervention, a column a resolution: accuracy, and what changed by it."""
    sizes = ascending(row["resolution"] for row in found)
    cells = {(r["model"], r["intervention"], r["resolution"]): r["accuracy"] for r in found}
    lines: list[Row] = []
    for model, name in dict.fromkeys((r["model"], r["intervention"]) for r in found):
        line = {"model": model, "accuracy in %": name}
        for size in sizes:
            change = cells[model, name, size] - cells[model, UNTOUCHED, size]
            line[f"{size} px"] = f"{cells[model, name, size]:.1f}" + (f" ({change:+.1f})" if name != UNTOUCHED else "")
        lines.append(line)
    return lines


def plot(found: Sequence[Row], path: Path) -> None:
    """Bars of the accuracy under each intervention, a panel a resolution; the line is the model as trained."""
    from matplotlib.figure import Figure

    sizes = ascending(row["resolution"] for row in found)
    names = list(dict.fromkeys(row["intervention"] for row in found))
    models = list(dict.fromkeys(row["model"] for row in found))
    figure = Figure(figsize=(2.2 + 2.6 * len(sizes), 1.2 + 0.22 * len(names) * len(models)))
    axes = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    for axis, size in zip(axes, sizes, strict=True):
        for i, model in enumerate(models):
            mine = [r for r in found if (r["model"], r["resolution"]) == (model, size)]
            places = [names.index(r["intervention"]) + (i + 0.5) / len(models) * 0.8 - 0.4 for r in mine]
            error = [[r["accuracy"] - r["low"] for r in mine], [r["high"] - r["accuracy"] for r in mine]]
            axis.barh(places, [r["accuracy"] for r in mine], 0.8 / len(models), xerr=error, label=model, color=f"C{i}")
            axis.axvline(mine[0]["accuracy"], color=f"C{i}", linewidth=0.8)
        axis.axvline(found[0]["null"], color="grey", linestyle=":")
        axis.set(title=f"{size} px", xlim=(0, 102), xlabel="accuracy in %", yticks=range(len(names)))
    axes[0].set_yticklabels(names, fontsize=7)
    axes[0].invert_yaxis()
    if len(models) > 1:
        axes[0].legend(fontsize=6)
    figure.tight_layout()
    save_figure(figure, path)
