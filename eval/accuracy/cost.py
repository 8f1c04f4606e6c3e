"""What do models cost beside what they get right, at each resolution?

Times are of folded inference, all models in turn, round after round.

Columns: `model`, `resolution` (pixels), `tokens`, `parameters (M)`, `GMACs`, `ms` and `images/s` (median of the rounds,
for one image), `to first` (time over that of the first model in the same round), `peak MiB` (of a batch), `accuracy`,
`low` and `high` (%), `images`, `split`, `majority baseline` (%), `trained at` (pixels). GMACs are 1e9 multiplications
with an addition in matrix products, convolutions and attention, of one image on a CPU; papers on ViTs call them FLOPs.
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
from eval.plotting.accuracy import AccuracyScale, note_of
from eval.plotting.axes import legend_above, note_below, plain_logarithm
from eval.plotting.style import line_styles, panels
from eval.report import MAJORITY, Row, accuracy_title, select, unique
from eval.speed.measure import CachedCall, check_rounds, multiplications, peak_bytes, time_in_turn
from eval.statistics import mean_over_seeds, median_ratio, without_seed
from performer_string import ViT, fold
from train.data.sizes import Size

ACCURACY = ("accuracy", "low", "high")


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
        vit, name = fold(trained.classifier.vit).cpu(), trained.name
        for size in options.resolutions:
            operations[name, size] = multiplications(inference(vit, size, 1, cpu))
        folded[name] = vit.to(device)
    first = models[0].name
    for size in tqdm(options.resolutions, desc="cost", leave=False, disable=None):
        calls = {name: inference(vit, size, batch, device) for name, vit in folded.items()}
        times = time_in_turn(calls, options.rounds, device)
        for trained in models:
            name = trained.name
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
                **{
                    key: accuracy[key] for key in ("accuracy", "low", "high", "images", "split", MAJORITY, "trained at")
                },
            }


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each model and resolution: seeds as one, with the cost of the first of them."""
    return [
        {
            **{key: value for key, value in row.items() if key not in (*ACCURACY, "trained at", "split")},
            accuracy_title(rows): f"{row['accuracy']:.1f} ({row['low']:.1f}-{row['high']:.1f})",
        }
        for row in mean_over_seeds(rows)
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over time and over operations, a curve through the resolutions of each model."""
    means = mean_over_seeds(rows)
    models = list(dict.fromkeys(without_seed(row["model"]) for row in rows))
    figure, axes = panels(2, height=2.8, sharey=True)
    scale = AccuracyScale(rows)
    titles = {"ms": "milliseconds an image", "GMACs": "GMACs an image"}
    for axis, (quantity, title) in zip(axes, titles.items(), strict=True):
        axis.set(xscale="log", xlabel=title)
        for (model, style), name in zip(line_styles(models).items(), unique(means, "model"), strict=True):
            curve = sorted(select(means, model=name), key=lambda row: row["tokens"])
            x, y = [row[quantity] for row in curve], scale.values(curve, "accuracy")
            ends = zip(scale.values(curve, "low"), scale.values(curve, "high"), strict=True)
            axis.plot(x, y, label=model, **style)
            axis.vlines(x, *zip(*map(sorted, ends), strict=True), color=style["color"], linewidth=0.8)
            for row, point in zip(curve, zip(x, y, strict=True), strict=True):
                text = {"textcoords": "offset points", "fontsize": 6, "color": style["color"]}
                axis.annotate(str(row["resolution"]), point, (3, -8), **text)
        axis.margins(x=0.08)
        plain_logarithm(axis.xaxis)
        scale.finish(axis, rows)
    for axis in axes[1:]:
        axis.set_ylabel("")
    legend_above(figure)
    note_below(
        figure,
        f"{note_of(rows)}; beside each point: image size in pixels".replace(
            "bands: lowest to highest seed", "bars: 95 % interval over seeds"
        ),
    )
    return figure
