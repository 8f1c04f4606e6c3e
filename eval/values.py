"""The row of a model's results on images of one size: its accuracy, or the measures of labels or numbers."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from eval.columns import columns_of
from eval.report import MAJORITY, Row
from train.checkpoint import Trained
from train.data.sizes import Size
from train.measures import MEASURES


def result_row(trained: Trained, size: Size, answers: Tensor, split: str) -> Row:
    """Return the row of a model's answers at a resolution, as `train.measures` has them; see `result_columns`."""
    return place(trained, size) | result_columns(trained, answers, split)


def result_columns(trained: Trained, answers: Tensor, split: str) -> dict[str, Any]:
    """Return the measures of a model's answers to the images of a split, with their intervals, and `origin`."""
    values, cells = answers.numpy(), dict[str, float]()
    for measure in MEASURES[trained.data.outputs]:
        cells |= columns_of(measure, dict(zip((measure.name, "low", "high"), measure.interval(values), strict=True)))
    return cells | {"images": len(answers), **origin(trained, split)}


def place(trained: Trained, size: Size) -> dict[str, Any]:
    """Return the columns of a model and a resolution."""
    return {"model": trained.name, "resolution": size, "tokens": math.prod(trained.classifier.vit.grid(*size))}


def origin(trained: Trained, split: str) -> dict[str, Any]:
    """Return the split, the majority baseline in % where answers are classes, and the training resolution."""
    classes = trained.data.outputs == "class"
    baseline = {MAJORITY: round(100 * trained.data.majority_accuracy(split), 4)} if classes else {}
    return {"split": split, **baseline, "trained at": Size.of(trained.data.size)}
