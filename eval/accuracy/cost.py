"""What do models cost, and how accurate are they, at each resolution?

Times are of folded inference, all models in turn, round after round.

Columns: `model`, `resolution` (pixels), `tokens`, `parameters (M)`, `GMACs`, `ms` and `images/s` (median of the rounds,
for one image), `relative to the first` (time over that of the first model in the same round), `peak MiB` (of a batch),
`accuracy`, `low` and `high` (%), `images`, `split`, `majority baseline` (%), `trained at` (pixels). Models of labels or
numbers have the measures of `eval resolution` in place of the accuracy. GMACs are 1e9
multiplications with an addition in matrix products, convolutions and attention, of one image on a CPU; papers on ViTs
call them FLOPs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from eval import checkpoints
from eval.accuracy.reports import COST
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import (
    CachedCall,
    add_rounds,
    gigamacs,
    median_ratio,
    million_parameters,
    peak_bytes,
    time_in_turn,
)
from eval.tables import line_of, result_line
from performer_string import ViT, fold
from train.data.sizes import Size
from train.utils.progress import progress, say_result
from train.utils.ranges import at_least

PLACE = ("model", "resolution", "tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval cost`."""
    checkpoints.add_arguments(parser)
    parser.add_argument("--batch-size", type=at_least(1), default=1, help="images in each timed batch (default: 1)")
    add_rounds(parser, 7)


def inference(vit: ViT, size: Size, count: int, device: torch.device) -> CachedCall[Tensor]:
    """Return a function that runs a model on random images [count, C, H, W]."""
    return CachedCall(vit, partial(vit, torch.randn(count, vit.config.in_channels, *size, device=device)))


@torch.inference_mode()
def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each resolution and model."""
    models = checkpoints.load_models(options, values=True)
    accuracies: dict[tuple[str, Size], Row] = {}
    for row in checkpoints.accuracies(models, options, device):
        accuracies[row["model"], row["resolution"]] = row
        say_result(result_line(row))
    batch = options.batch_size
    operations: dict[tuple[str, Size], float] = {}
    folded: dict[str, ViT] = {}
    for trained in models:
        vit, name = fold(trained.classifier.vit), trained.name
        for size in options.resolutions:
            operations[name, size] = gigamacs(vit, size)
        folded[name] = vit.to(device)
    first = models[0].name
    for size in progress(options.resolutions, desc="cost"):
        calls = {name: inference(vit, size, batch, device) for name, vit in folded.items()}
        times = time_in_turn(calls, options.rounds, device)
        for trained in models:
            name = trained.name
            accuracy = accuracies[name, size]
            median = statistics.median(times[name]) / batch
            yield {
                **{key: accuracy[key] for key in PLACE},
                "parameters (M)": million_parameters(trained.classifier.vit),
                "GMACs": operations[name, size],
                "ms": float(f"{1000 * median:.4g}"),
                "images/s": float(f"{1 / median:.4g}"),
                "relative to the first": round(median_ratio(times[name], times[first]), 3),
                "peak MiB": round(peak_bytes(calls[name], device) / 2**20, 2),
                **{key: cell for key, cell in accuracy.items() if key not in PLACE},
            }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, COST, line=line_of(("model", "resolution"), "ms", "peak MiB"))
