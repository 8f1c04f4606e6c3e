"""The row of a model's results on images of one size: its accuracy, or the measures of labels or numbers."""

from __future__ import annotations

import math
from typing import Any

from eval.columns import columns_of
from eval.report import MAJORITY, Row
from train.checkpoint import Trained
from train.data.sizes import Size
from train.intervals import accuracy_percent
from train.measures import MEASURES
from train.testing import ImageResults


def result_row(trained: Trained, size: Size, results: ImageResults, split: str) -> Row:
    """Return the row of a model's results at a resolution: its measures with their intervals over images.

    Args:
        trained: the model and its data.
        size: size of the images in pixels.
        results: results of each image.
        split: split of the images.
    """
    answers, cells = results.answers.numpy(), dict[str, float]()
    for measure in MEASURES[trained.data.outputs]:
        cells |= columns_of(measure, dict(zip((measure.name, "low", "high"), measure.interval(answers), strict=True)))
    return place(trained, size) | cells | {"images": len(answers), **origin(trained, split)}


def accuracy_row(trained: Trained, size: Size, right: int, total: int, split: str) -> Row:
    """Return the row of a model's accuracy at a resolution; arguments are as in `accuracy_columns`."""
    return place(trained, size) | accuracy_columns(trained, right, total, split)


def accuracy_columns(trained: Trained, right: int, total: int, split: str) -> dict[str, Any]:
    """Return an accuracy in % with its interval, the split, the majority baseline and the training resolution.

    The accuracy and its interval are those of `accuracy_percent`.
    """
    return accuracy_percent(right, total) | origin(trained, split)


def place(trained: Trained, size: Size) -> dict[str, Any]:
    """Return the columns of a model and a resolution."""
    return {"model": trained.name, "resolution": size, "tokens": math.prod(trained.classifier.vit.grid(*size))}


def origin(trained: Trained, split: str) -> dict[str, Any]:
    """Return the split, the majority baseline in % where answers are classes, and the training resolution."""
    classes = trained.data.outputs == "class"
    baseline = {MAJORITY: round(100 * trained.data.majority_accuracy(split), 4)} if classes else {}
    return {"split": split, **baseline, "trained at": Size.of(trained.data.size)}
