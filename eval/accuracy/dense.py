r"""How good are models with a dense head at resolutions far above that of their training, at which cost?

Each image is predicted in one pass (`whole`), and as overlapping tiles whose probabilities are averaged (`tiles`).
Tiles are usual where a model does not take the whole image. Times and memory are of folded inference of one image, or
of 16 tiles at a time. Larger images are fewer: --images at the training resolution, and in proportion to their side,
but 8 at least where there are so many. Models with softmax are left out above --longest-softmax tokens.

Columns: `model`, `method` (whole or tiles), `resolution` (pixels), `tokens` (of the whole image), `mIoU`, `low` and
`high` (%, intersection over union of each class over all pixels, and their mean; 95 % interval by the bootstrap over
images), `accuracy` (% of the pixels), `IoU` (% of each class, in the order of the labels), `local baseline` (mIoU in %
of the best rule that looks at one place only), `ms` (median over the images), `peak MiB`, `tile` (pixels), `overlap`,
`images`, `split`, `trained at` (pixels).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from eval import checkpoints
from eval.accuracy.dense_report import METHODS, SHOWN
from eval.accuracy.tiles import check_overlap, predict_tiles
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import peak_bytes
from eval.tables import line_of
from performer_string import ViT, fold
from train.checkpoint import Trained
from train.data.generated import local_answer
from train.data.sizes import Size
from train.measures import iou_of
from train.pixels import confusion, image_count, mean_iou_with_interval
from train.utils.progress import progress
from train.utils.ranges import at_least

LONGEST = 16_384  # default of --longest-softmax, in tokens
Predict = Callable[[Tensor], Tensor]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval dense`."""
    checkpoints.add_arguments(parser)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="default: both")
    parser.add_argument("--tile", type=at_least(1), help="side of the tiles in pixels; default: the training size")
    parser.add_argument("--overlap", type=float, default=0.5, help="share of a tile that the next one overlaps")
    most = "tokens above which models with softmax are left out (default: %(default)s)"
    parser.add_argument("--longest-softmax", type=at_least(1), default=LONGEST, help=most)


@torch.inference_mode()
def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model, resolution and method."""
    check_overlap(options.overlap)
    models = checkpoints.load_models(options, "dense")
    for trained in progress(models, "models", only_lines=True):
        vit = fold(trained.classifier.vit).to(device)
        with vit.cached():
            for size in options.resolutions:
                tokens = math.prod(vit.grid(*size))
                if "softmax" in vit.config.kinds_of_attention() and tokens > options.longest_softmax:
                    sys.stderr.write(f"{trained.name} at {size} px is left out: {tokens:,} tokens with softmax.\n")
                    continue
                yield from rows_of(trained, vit, size, options, device)


def methods_of(
    vit: ViT, trained: Trained, size: Size, options: argparse.Namespace
) -> Iterator[tuple[str, int | str, Predict]]:
    """Yield each method with the side of its tiles (if any) and the function that predicts an image."""
    tile = options.tile or min(trained.data.size)
    if "whole" in options.methods:
        yield "whole", "", vit
    if "tiles" in options.methods and tile < max(size) and tile <= min(size):
        yield "tiles", tile, lambda image: predict_tiles(vit, image, tile, options.overlap)


def rows_of(trained: Trained, vit: ViT, size: Size, options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield the row of each method at a size."""
    data, classes = trained.data, vit.config.num_classes
    count = image_count(trained, size, options.split, options.images)
    images = data.held_out(options.split, size, count)
    methods = list(methods_of(vit, trained, size, options))
    counts: dict[str, list[Tensor]] = {name: [] for name, *_ in methods}
    times: dict[str, list[float]] = {name: [] for name, *_ in methods}
    baseline = torch.zeros(classes, classes, dtype=torch.long)
    image = torch.empty(0)
    for batch, labels in progress(data.loader(images, 1), desc=f"{trained.name} at {size}"):
        image = data.normalise(batch.to(device))
        baseline += confusion(local_answer(data.task, labels), labels, classes)
        for name, _, predict in methods:
            start = time.perf_counter()
            answers = predict(image).argmax(1).cpu()  # .cpu() waits for the device
            times[name].append(1000 * (time.perf_counter() - start))
            counts[name].append(confusion(answers, labels, classes))
    for name, tile, predict in methods:
        mean, low, high = mean_iou_with_interval(torch.stack(counts[name]))
        total = torch.stack(counts[name]).sum(0)  # [K, K]
        yield {
            "model": trained.name,
            "method": name,
            "resolution": size,
            "tokens": math.prod(vit.grid(*size)),
            **{"mIoU": round(mean, 4), "low": round(low, 4), "high": round(high, 4)},
            "accuracy": round(100 * float(total.diagonal().sum() / total.sum()), 4),
            "IoU": " ".join(f"{100 * float(value):.2f}" for value in iou_of(total)),
            "local baseline": round(100 * float(iou_of(baseline).mean()), 4),
            "ms": float(f"{statistics.median(times[name]):.4g}"),
            "peak MiB": round(peak_bytes(partial(predict, image), device) / 2**20, 2),
            "tile": tile,
            "overlap": options.overlap if tile else "",
            "images": len(counts[name]),
            "split": options.split,
            "trained at": Size.of(data.size),
        }


EVALUATION = Evaluation(
    __doc__, add_arguments, evaluate, SHOWN, line=line_of(("model", "resolution", "method"), "mIoU", "ms")
)
