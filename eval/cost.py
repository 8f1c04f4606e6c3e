"""What models cost beside what they get right: parameters, operations, time and memory of an image, and accuracy, at
each resolution.

GMACs are 1e9 multiplications with an addition in matrix products, convolutions and attention, of one image on a CPU
(papers on ViTs call them FLOPs). Times are of folded inference, all models in turn, round after round; the ratio to the
first model is the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from eval import checkpoints
from eval.arguments import positive
from eval.checkpoints import name_of, result_directory
from eval.measure import check_rounds, in_turn, multiplications, peak_bytes, ratio
from eval.report import Row, save_figure
from eval.seeds import over_seeds
from performer_string import ViT, fold
from train.data.sizes import Size

__all__ = ["HELP", "add_arguments", "plot", "result_directory", "rows", "summary"]

HELP = "parameters, operations, time, memory and accuracy of models at each resolution, side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    checkpoints.add_arguments(parser)
    parser.add_argument("--batch-size", type=positive, default=1, help="images at a time in what is timed")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of time, after one not counted")


def random_images(vit: ViT, size: Size, count: int, device: torch.device) -> Tensor:
    return torch.randn(count, vit.config.in_channels, *size, device=device)


@torch.inference_mode()
def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    check_rounds(options.rounds)
    models = checkpoints.load_models(options)
    right = {(row["model"], row["resolution"]): row for row in checkpoints.accuracies(models, options, device)}
    cpu, batch = torch.device("cpu"), options.batch_size
    operations: dict[tuple[str, Size], int] = {}
    folded: dict[str, ViT] = {}
    for trained in models:
        vit, name = fold(trained.classifier.vit).cpu(), name_of(trained.path)
        for size in options.resolutions:
            operations[name, size] = multiplications(partial(vit, random_images(vit, size, 1, cpu)))
        folded[name] = vit.to(device)
    for size in tqdm(options.resolutions, desc="cost", leave=False, disable=None):
        calls = {name: partial(vit, random_images(vit, size, batch, device)) for name, vit in folded.items()}
        times = in_turn(calls, options.rounds, device)
        for trained in models:
            name = name_of(trained.path)
            own = right[name, size]
            median = statistics.median(times[name]) / batch
            yield {
                **{key: own[key] for key in ("model", "resolution", "tokens")},
                "parameters (M)": round(sum(p.numel() for p in trained.classifier.vit.parameters()) / 1e6, 4),
                "GMACs": float(f"{operations[name, size] / 1e9:.4g}"),
                "ms": float(f"{1000 * median:.4g}"),
                "images/s": float(f"{1 / median:.4g}"),
                "to first": round(ratio(times[name], times[name_of(models[0].path)]), 3),
                "peak MiB": round(peak_bytes(calls[name], device) / 2**20, 2),
                **{key: own[key] for key in ("accuracy", "low", "high", "images", "null", "trained at")},
            }


def summary(found: Sequence[Row]) -> list[Row]:
    """Seeds of a model as one, with the cost of the first of them."""
    return [
        {
            **{key: value for key, value in row.items() if key not in ("low", "high", "accuracy", "trained at")},
            "accuracy in %": f"{row['accuracy']:.1f} ({row['low']:.1f}-{row['high']:.1f})",
        }
        for row in over_seeds(found)
    ]


def plot(found: Sequence[Row], path: Path) -> None:
    """Accuracy over time and over operations, a curve through the resolutions of each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    merged = over_seeds(found)
    for axis, quantity, title in zip(panels, ("ms", "GMACs"), ("milliseconds an image", "GMACs an image"), strict=True):
        for number, model in enumerate(dict.fromkeys(row["model"] for row in merged)):
            own = sorted((row for row in merged if row["model"] == model), key=lambda row: row["tokens"])
            x, y = [row[quantity] for row in own], [row["accuracy"] for row in own]
            spread = [[r["accuracy"] - r["low"] for r in own], [r["high"] - r["accuracy"] for r in own]]
            axis.errorbar(x, y, spread, marker="os^D"[number // 10 % 4], capsize=2, elinewidth=1, label=model)
            for row in own:
                place = (row[quantity], row["accuracy"])
                axis.annotate(str(row["resolution"]), place, (3, -9), textcoords="offset points", fontsize=6)
        axis.axhline(found[0]["null"], color="grey", linestyle=":", label="null")
        axis.set(xscale="log", xlabel=title)
        axis.grid(alpha=0.2)
    panels[0].set(ylabel="accuracy in %")
    panels[1].legend(fontsize=7)
    save_figure(figure, path)
