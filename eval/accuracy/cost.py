"""What do models cost beside what they get right, at each resolution?

Times are of folded inference, all models in turn, round after round.

Columns: `model`, `resolution` (pixels), `tokens`, `parameters (M)`, `GMACs`, `ms` and `images/s` (median of the rounds,
for one image), `to first` (time over that of the first model in the same round), `peak MiB` (of a batch), `accuracy`,
`low` and `high` (%), `images`, `majority baseline` (%), `trained at` (pixels). GMACs are 1e9 multiplications with an
addition in matrix products, convolutions and attention, of one image on a CPU; papers on ViTs call them FLOPs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from eval import checkpoints
from eval.argument_types import positive_int
from eval.checkpoints import name_of
from eval.report import MAJORITY, Row, error_bars, select, unique
from eval.speed.measure import CachedCall, check_rounds, multiplications, peak_bytes, time_in_turn
from eval.statistics import mean_over_seeds, median_ratio
from performer_string import ViT, fold
from train.data.sizes import Size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval cost`."""
    checkpoints.add_arguments(parser)
    parser.add_argument("--batch-size", type=positive_int, default=1, help="images at a time in what is timed")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of time, after one not counted")


def inference(vit: ViT, size: Size, count: int, device: torch.device) -> CachedCall[Tensor]:
    """Return a call of a model on random images [count, C, H, W]."""
    return CachedCall(vit, partial(vit, torch.randn(count, vit.config.in_channels, *size, device=device)))


@torch.inference_mode()
def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each resolution and model."""
    check_rounds(options.rounds)
    models = checkpoints.load_models(options)
    accuracies = {(row["model"], row["resolution"]): row for row in checkpoints.accuracies(models, options, device)}
    cpu, batch = torch.device("cpu"), options.batch_size
    operations: dict[tuple[str, Size], int] = {}
    folded: dict[str, ViT] = {}
    for trained in models:
        vit, name = fold(trained.classifier.vit).cpu(), name_of(trained.path)
        for size in options.resolutions:
            operations[name, size] = multiplications(inference(vit, size, 1, cpu))
        folded[name] = vit.to(device)
    first = name_of(models[0].path)
    for size in tqdm(options.resolutions, desc="cost", leave=False, disable=None):
        calls = {name: inference(vit, size, batch, device) for name, vit in folded.items()}
        times = time_in_turn(calls, options.rounds, device)
        for trained in models:
            name = name_of(trained.path)
            accuracy = accuracies[name, size]
            median = statistics.median(times[name]) / batch
            yield {
                **{key: accuracy[key] for key in ("model", "resolution", "tokens")},
                "parameters (M)": round(sum(p.numel() for p in trained.classifier.vit.parameters()) / 1e6, 4),
                "GMACs": float(f"{operations[name, size] / 1e9:.4g}"),
                "ms": float(f"{1000 * median:.4g}"),
                "images/s": float(f"{1 / median:.4g}"),
                "to first": round(median_ratio(times[name], times[first]), 3),
                "peak MiB": round(peak_bytes(calls[name], device) / 2**20, 2),
                **{key: accuracy[key] for key in ("accuracy", "low", "high", "images", MAJORITY, "trained at")},
            }


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each model and resolution: seeds as one, with the cost of the first of them."""
    return [
        {
            **{key: value for key, value in row.items() if key not in ("low", "high", "accuracy", "trained at")},
            "accuracy in %": f"{row['accuracy']:.1f} ({row['low']:.1f}-{row['high']:.1f})",
        }
        for row in mean_over_seeds(rows)
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over time and over operations, a curve through the resolutions of each model."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    means = mean_over_seeds(rows)
    for axis, quantity, title in zip(panels, ("ms", "GMACs"), ("milliseconds an image", "GMACs an image"), strict=True):
        for number, model in enumerate(unique(means, "model")):
            curve = sorted(select(means, model=model), key=lambda row: row["tokens"])
            x, y = [row[quantity] for row in curve], [row["accuracy"] for row in curve]
            marker = "os^D"[number // 10 % 4]
            axis.errorbar(x, y, error_bars(curve), marker=marker, capsize=2, elinewidth=1, label=model)
            for row in curve:
                point = (row[quantity], row["accuracy"])
                axis.annotate(str(row["resolution"]), point, (3, -9), textcoords="offset points", fontsize=6)
        axis.axhline(rows[0][MAJORITY], color="grey", linestyle=":", label=MAJORITY)
        axis.set(xscale="log", xlabel=title)
        axis.grid(alpha=0.2)
    panels[0].set(ylabel="accuracy in %")
    panels[1].legend(fontsize=7)
    return figure
