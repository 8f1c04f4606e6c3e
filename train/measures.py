"""Measures of a model's answers to all images: name, unit, direction and range, and the function of the answers.

The answers of a model of one class are whether each is right, [N]. Those of labels or numbers are its outputs with the
targets, [N, 2, n], and those of a dense head the confusions of pixels, [N, classes, classes].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from train.intervals import bootstrap_interval, wilson_interval

Answers = NDArray[Any]


def percent(right: Answers) -> float:
    """Return the share of right answers in %."""
    return 100.0 * float(np.mean(right))


def wilson_percent(right: Answers) -> tuple[float, float, float]:
    """Return the share of right answers in %, and its 95 % interval by Wilson."""
    low, high = wilson_interval(int(right.sum()), len(right))
    return percent(right), 100 * low, 100 * high


def average_precision(answers: Answers) -> float:
    """Return the average precision, the mean over labels; that of one without an image is 0, as in training.

    It is the mean of the precision at each image with the label, among all images that are at least as likely. A
    thousand resamples take this form, since that of torchmetrics, with which the tests compare it, is slower by far.
    """
    logits, labels = answers[:, 0], answers[:, 1].round()
    order = np.argsort(-logits, axis=0, kind="stable")
    logits, labels = (np.take_along_axis(values, order, axis=0) for values in (logits, labels))
    ranks = np.arange(1, len(logits) + 1)[:, None]
    last = np.append(logits[1:] != logits[:-1], np.ones_like(logits[:1], bool), axis=0)  # of equally likely images
    ends = np.minimum.accumulate(np.where(last, ranks, len(logits))[::-1], axis=0)[::-1]
    right = labels.cumsum(0, dtype=float)
    precision = np.take_along_axis(right, ends - 1, axis=0) / ends
    return float(np.mean((labels * precision).sum(0) / np.maximum(right[-1], 1)))


def r2(answers: Answers) -> float:
    """Return the share of the targets' variance that is explained, the mean over numbers; 0 where there is none."""
    outputs, targets = answers[:, 0].astype(float), answers[:, 1].astype(float)
    left, whole = (((targets - each) ** 2).sum(0) for each in (outputs, targets.mean(0)))
    return float(np.mean(np.where(whole > 0, 1 - left / np.where(whole > 0, whole, 1), left == 0)))


def mean_absolute_error(answers: Answers) -> float:
    """Return the mean absolute error, the mean over numbers."""
    return float(np.abs(answers[:, 0] - answers[:, 1]).mean(dtype=float))


def iou_of(counts: Any) -> Any:
    """Return the intersection over union of each class that occurs in labels or answers.

    Args:
        counts: confusion counts [classes, classes], of one image or summed over several, an array or a tensor.

    Returns:
        Values in [0, 1], one for each such class; their mean is the mIoU.
    """
    both = counts.diagonal()
    either = counts.sum(0) + counts.sum(1) - both
    return both[either > 0] / either[either > 0]


def mean_iou(counts: Answers) -> float:
    """Return the mIoU in % of confusions of pixels, [N, classes, classes]."""
    return 100.0 * float(iou_of(counts.sum(0)).mean())


class Measure(NamedTuple):
    """A measure of the answers to all images together.

    Attributes:
        name: name in CSV files and cards; validation logs it as `val/NAME`.
        title: name with its unit, for tables and figures.
        values: its values in a sentence.
        of: function of the answers, [N, ...].
        digits: decimals in tables.
        least, most: ends of its range.
        higher: whether a higher value is better.
        unit: `%` where values are in %, of which differences are in points; else empty.
        in_images: function of the answers that returns the value and its 95 % interval over images; by default that of
            the bootstrap.
    """

    name: str
    title: str
    values: str
    of: Callable[[Answers], float]
    digits: int = 3
    least: float = 0.0
    most: float = 1.0
    higher: bool = True
    unit: str = ""
    in_images: Callable[[Answers], tuple[float, float, float]] | None = None

    @property
    def label(self) -> str:
        """Title with the direction where lower is better."""
        return self.title if self.higher else f"{self.title} (lower is better)"

    @property
    def scale(self) -> float:
        """Factor from logged values to those of evaluations."""
        return 100.0 if self.unit == "%" else 1.0

    def interval(self, answers: Answers) -> tuple[float, float, float]:
        """Return the value and its 95 % interval over the images of one model."""
        if self.in_images is not None:
            return self.in_images(answers)
        return bootstrap_interval(lambda images: self.of(answers[images]), len(answers))

    def rounded(self, value: float) -> float:
        """Return a value for CSV files, with three more digits than tables show, to avoid rounding twice."""
        return round(value, self.digits + 3)


ACCURACY = Measure(
    "accuracy", "accuracy in %", "accuracies", percent, digits=1, most=100.0, unit="%", in_images=wilson_percent
)  # fmt: skip
MIOU = Measure("mIoU", "mIoU in %", "mIoU", mean_iou, digits=1, most=100.0, unit="%")
AVERAGE_PRECISION = Measure("average_precision", "average precision", "average precision", average_precision)
R2 = Measure("r2", "r2", "r2", r2, least=-math.inf)
ERROR = "mean absolute error"
MAE = Measure("mae", ERROR, ERROR, mean_absolute_error, most=math.inf, higher=False)
# The measures of each kind of answers, the main one first: it chooses the best checkpoint.
MEASURES: dict[str, tuple[Measure, ...]] = {"class": (ACCURACY,), "labels": (AVERAGE_PRECISION,), "numbers": (R2, MAE)}
