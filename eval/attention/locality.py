"""How far does each head attend, as learned (sigma) and as measured, and what does that cost?

The measured radius is the mean over images and queries of sum_j w_ij |p_i - p_j| / sum_j w_ij over patches, in patches
of the training grid. The weights w are the attention A (`attention radius`) or what the values are summed with,
A lambda (`effective radius`); `uniform` is the radius of equal weights.

The accuracy of models with a dense head is their mIoU, on fewer images of larger sizes, as in `eval dense`. That of
models of labels or numbers is their own metric. Time and memory are of random images: square ones of --tokens tokens,
and for videos those of --resolutions.

Columns: `part` (accuracy, radius or cost), `model`, `quantity`, `value`, `resolution` (pixels), `tokens`, `layer`,
`head`, `low` and `high` (interval of an accuracy, range of a time), `images`, `split`, `majority baseline`, `trained
at`. What does not apply is empty.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eval import checkpoints
from eval.argument_types import WithoutRepetitions, square_number
from eval.attention.locality_report import SHOWN
from eval.columns import columns_of, measure_of
from eval.evaluations import Evaluation
from eval.report import MAJORITY, Row
from eval.speed.measure import CachedCall, add_rounds, peak_bytes, time_in_turn
from eval.tables import line_of
from eval.values import place
from performer_string import ViT, fold
from performer_string.layers.inspection import inspect_attention
from train.checkpoint import Trained
from train.data.sizes import Size
from train.measures import MIOU
from train.pixels import confusions, image_count, mean_iou_with_interval
from train.utils.progress import progress
from train.utils.ranges import at_least

SOMETIMES_EMPTY = ("resolution", "tokens", "layer", "head", "low", "high", "images", "split", MAJORITY, "trained at")
FROM_ACCURACY = ("resolution", "tokens", "low", "high", "images", "split", MAJORITY, "trained at")
TOKENS = (256, 1024, 4096)  # default of --tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval locality`."""
    checkpoints.add_arguments(parser)
    default = " ".join(map(str, TOKENS))
    parser.add_argument(
        "--tokens",
        nargs="+",
        type=square_number,
        action=WithoutRepetitions,
        help=f"numbers of tokens at which time and memory of images are measured (default: {default})",
    )
    add_rounds(parser, 5)
    parser.add_argument(
        "--probes", type=at_least(1), default=8, help="number of images for the radius (default: %(default)s)"
    )


def make_row(part: str, model: str, quantity: str, value: float, **more: Any) -> Row:
    """Return a row with all columns of the CSV file; those not given are empty."""
    empty = dict.fromkeys(SOMETIMES_EMPTY, "")
    return {"part": part, "model": model, "quantity": quantity, "value": float(f"{value:.5g}"), **empty, **more}


def attention_radius(weights: Tensor, positions: Tensor) -> Tensor:
    """Return the weighted mean distance to the keys, [H]; a query without any weight is left out.

    Args:
        weights: attention weights, [B, H, N, N].
        positions: positions of the tokens in patches, [N, C].
    """
    distance = (positions[:, None] - positions).norm(dim=-1)  # [N, N]
    means = (weights * distance).sum(-1) / weights.sum(-1)  # [B, H, N]; NaN without any weight
    return means.nanmean((0, 2))


@torch.no_grad()
def measure_radius(trained: Trained, options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield rows with the radius of each layer and head at the training resolution."""
    vit, data, name = trained.classifier.vit.to(device), trained.data, trained.name
    size = Size.of(data.size)
    held_out = data.held_out(options.split, size, options.probes)
    images = torch.stack([held_out[i][0] for i in range(len(held_out))])  # type: ignore[arg-type]
    prefix, positions = vit.num_prefix, vit.grid_positions(vit.grid(*size), device)
    columns = {"resolution": size, "tokens": len(positions), "images": len(images), "split": options.split}
    equal = torch.ones(1, 1, len(positions), len(positions), device=device)
    yield make_row("radius", name, "uniform", float(attention_radius(equal, positions)), **columns)
    for layer, probe in enumerate(inspect_attention(vit, data.normalise(images.to(device)))):
        weights = {"attention radius": probe.weights(), "effective radius": probe.effective_weights()}
        radii = {quantity: attention_radius(w[..., prefix:, prefix:], positions) for quantity, w in weights.items()}
        if probe.locality is not None:
            radii |= probe.locality.learned()
        for quantity, values in radii.items():
            for head, value in enumerate(values.tolist()):
                yield make_row("radius", name, quantity, value, layer=layer, head=head, **columns)


def sizes_of_cost(models: Sequence[Trained], options: argparse.Namespace) -> list[tuple[int, ...]]:
    """Return the grids of tokens at which time and memory are measured.

    Raises:
        ValueError: `--tokens` for videos, whose tokens form no square.
    """
    vit, name = models[0].classifier.vit, models[0].name
    if len(vit.patch) == 2:
        return [(math.isqrt(count),) * 2 for count in options.tokens or TOKENS]
    if options.tokens:
        raise ValueError(
            f"--tokens are of square images, and {name} is a model of videos: its time and memory are measured at the "
            f"--resolutions. Leave --tokens out."
        )
    return [vit.grid(*size) for size in options.resolutions]


@torch.inference_mode()
def measure_cost(
    models: Sequence[Trained], grids: Sequence[tuple[int, ...]], rounds: int, device: torch.device
) -> Iterator[Row]:
    """Yield rows with time and memory of folded inference of one random image, all models in turn."""
    folded = {trained.name: fold(trained.classifier.vit).to(device) for trained in models}
    for grid in progress(grids, desc="cost"):
        calls = {name: CachedCall(vit, partial(vit, random_image(vit, grid, device))) for name, vit in folded.items()}
        times = time_in_turn(calls, rounds, device)
        for name, call in calls.items():
            memory = peak_bytes(call, device)
            columns = {"tokens": math.prod(grid)}
            spread = {"low": float(f"{1000 * min(times[name]):.5g}"), "high": float(f"{1000 * max(times[name]):.5g}")}
            median = 1000 * statistics.median(times[name])
            yield make_row("cost", name, "milliseconds", median, **columns, **spread)
            yield make_row("cost", name, "peak MiB", memory / 2**20, **columns)


def random_image(vit: ViT, grid: Sequence[int], device: torch.device) -> Tensor:
    """Return a random image, or video, with a grid of tokens, [1, C, *size]."""
    size = [tokens * pixels for tokens, pixels in zip(grid, vit.patch, strict=True)]
    return torch.randn(1, vit.config.in_channels, *size, device=device)


def result_rows(models: Sequence[Trained], options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row with the accuracy of each model at each resolution, its mIoU, or the measures of its answers."""
    if models[0].classifier.vit.config.head != "dense":
        yield from checkpoints.accuracies(models, options, device)
        return
    for trained, size in checkpoints.at_each_size(models, options):
        number = image_count(trained, size, options.split, options.images)
        counts = confusions(trained, size, options.split, number, device)
        values = zip((MIOU.name, "low", "high"), mean_iou_with_interval(counts), strict=True)
        images = {"images": len(counts), "split": options.split, "trained at": Size.of(trained.data.size)}
        yield place(trained, size) | columns_of(MIOU, dict(values)) | images


def measure_accuracy(models: Sequence[Trained], options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield the rows of the part `accuracy`, with the main measure of `result_rows`."""
    for row in result_rows(models, options, device):
        measure = measure_of(row)
        quantity = f"{measure.name} in {measure.unit}" if measure.unit else measure.name
        columns = {column: row.get(column, "") for column in FROM_ACCURACY}
        yield make_row("accuracy", row["model"], quantity, row[measure.name], **columns)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield the rows of the parts `accuracy`, `radius` and `cost`."""
    models = checkpoints.load_models(options, head=None, values=True)
    grids = sizes_of_cost(models, options)
    yield from measure_accuracy(models, options, device)
    for trained in progress(models, desc="radius"):
        yield from measure_radius(trained, options, device)
    yield from measure_cost(models, grids, options.rounds, device)


def line(row: Row) -> str:
    """Return the line of an accuracy or a cost; those of the heads' radii are many."""
    return "" if row["part"] == "radius" else line_of(("model", "resolution", "quantity", "tokens"), "value")(row)


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN, line=line)
