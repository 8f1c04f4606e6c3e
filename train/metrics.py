"""Metrics of validation and test, by what a model answers: one class of each image or pixel, labels, or numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanAbsoluteError, Metric, R2Score
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex, MultilabelAveragePrecision
from torchmetrics.functional import mean_absolute_error, r2_score
from torchmetrics.functional.classification import multilabel_average_precision

from train.data.unlabelled import IGNORED
from train.intervals import bootstrap_interval


class Measure(NamedTuple):
    """A metric of all images together.

    Attributes:
        of: function of the outputs and targets, each [N, n].
        higher: whether a higher value is better.
    """

    of: Callable[[Tensor, Tensor], Tensor]
    higher: bool


def average_precision(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the average precision, the mean over labels."""
    return multilabel_average_precision(logits, labels.round().long(), logits.shape[-1], validate_args=False)


# The metrics of each kind of outputs, the main one of `targets.best_by` first.
MEASURES: dict[str, dict[str, Measure]] = {
    "labels": {"average_precision": Measure(average_precision, higher=True)},
    "numbers": {"r2": Measure(r2_score, higher=True), "mae": Measure(mean_absolute_error, higher=False)},
}


def with_intervals(kind: str, outputs: Tensor, targets: Tensor) -> dict[str, tuple[float, float, float]]:
    """Return the metrics of labels or numbers, each with its 95 % interval by the bootstrap over images.

    Args:
        kind: what the model answers, `labels` or `numbers`.
        outputs, targets: outputs of the model and targets of the images, [N, n] each.
    """

    def interval(measure: Measure) -> tuple[float, float, float]:
        def drawn(images: np.ndarray[Any, np.dtype[np.int64]]) -> float:
            chosen = torch.from_numpy(images)
            return float(measure.of(outputs[chosen], targets[chosen]))

        return bootstrap_interval(drawn, len(outputs))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No positive samples")  # of a label in a resample
        return {name: interval(measure) for name, measure in MEASURES[kind].items()}


def mean_iou(classes: int) -> MulticlassJaccardIndex:
    """Return the metric mIoU: the mean over classes of the intersection over union over all pixels with a class."""
    return MulticlassJaccardIndex(classes, average="macro", ignore_index=IGNORED, validate_args=False)


def metrics_of(outputs: str, head: str, size: int) -> dict[str, Callable[[], Metric]]:
    """Return what builds each metric of a model, by name.

    Args:
        outputs: what the model answers, as in `Preprocessing`: `class`, `labels` or `numbers`.
        head: head of the model, `class` or `dense`.
        size: number of its outputs.
    """
    if outputs == "labels":
        return {"average_precision": lambda: MultilabelAveragePrecision(size, validate_args=False)}
    if outputs == "numbers":
        return {"r2": R2Score, "mae": MeanAbsoluteError}
    ignored = IGNORED if head == "dense" else None

    def accuracy(k: int = 1) -> MulticlassAccuracy:  # the data module checks the classes: here it waits for the GPU
        return MulticlassAccuracy(size, k, average="micro", ignore_index=ignored, validate_args=False)

    if head == "dense":
        return {"accuracy": accuracy, "miou": lambda: mean_iou(size)}
    top5: dict[str, Callable[[], Metric]] = {"top5_accuracy": lambda: accuracy(5)} if size >= 100 else {}
    return {"accuracy": accuracy, **top5}


def count(metric: Metric, outputs: str, logits: Tensor, targets: Tensor) -> None:
    """Count a batch: logits [B, n], or [B, n, H, W], and targets as in `ImageClassifier.training_loss`."""
    if outputs == "labels":
        targets = targets.round().long()
    elif outputs == "numbers" and logits.shape[-1] == 1:  # torchmetrics takes one number of each image as [B]
        logits, targets = logits[:, 0], targets[:, 0]
    metric(logits, targets)


def plain_losses(outputs: str, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each image or pixel in validation, whatever that of the training: [B], or [B, H, W].

    It is the cross-entropy of a class, the mean binary cross-entropy of labels, or the mean squared error of numbers.
    """
    if outputs == "labels":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(-1)
    if outputs == "numbers":
        return F.mse_loss(logits, targets, reduction="none").mean(-1)
    return F.cross_entropy(logits, targets, reduction="none")
