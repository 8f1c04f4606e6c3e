"""Metrics of validation and test, by what a model answers: one class of each image or pixel, labels, or numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanAbsoluteError, Metric, R2Score
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex, MultilabelAveragePrecision

from performer_string.utils import dtype
from train.data.unlabelled import IGNORED


def mean_iou(classes: int) -> MulticlassJaccardIndex:
    """Return the metric mIoU: the mean over classes of the intersection over union over all pixels with a class."""
    return MulticlassJaccardIndex(classes, average="macro", ignore_index=IGNORED, validate_args=False)


class R2(R2Score):
    """The metric r2, also of one image: without a variance to explain it is 0, or 1 of right answers."""

    def compute(self) -> Tensor:
        """Return the mean over numbers, as `train.measures.r2` does; torchmetrics refuses one image."""
        return super().compute() if self.total > 1 else (self.residual == 0).to(self.residual.dtype).mean()


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
        return {"r2": R2, "mae": MeanAbsoluteError}
    ignored = IGNORED if head == "dense" else None

    def accuracy(k: int = 1) -> MulticlassAccuracy:  # the data module checks the classes: here it waits for the GPU
        return MulticlassAccuracy(size, k, average="micro", ignore_index=ignored, validate_args=False)

    if head == "dense":
        return {"accuracy": accuracy, "miou": lambda: mean_iou(size)}
    top5: dict[str, Callable[[], Metric]] = {"top5_accuracy": lambda: accuracy(5)} if size >= 100 else {}
    return {"accuracy": accuracy, **top5}


def update_metric(metric: Metric, outputs: str, logits: Tensor, targets: Tensor) -> None:
    """Update a metric by a batch: logits [B, n], or [B, n, H, W], and targets as in `ImageClassifier.training_loss`."""
    if outputs == "labels":
        # Only their order counts. Of logits torchmetrics takes a sigmoid, but of those of a batch within [0, 1] none.
        logits, targets = F.softsign(logits) / 2 + 0.5, targets.round().long()
    elif outputs == "numbers":
        if logits.device.type not in dtype.WITHOUT_FLOAT64:  # r2 sums squares, whose variance may be in the last digits
            metric.set_dtype(torch.float64)
            logits, targets = logits.double(), targets.double()
        if logits.shape[-1] == 1:  # torchmetrics takes one number of each image as [B]
            logits, targets = logits[:, 0], targets[:, 0]
    metric.update(logits, targets)  # a call would compute the value of the batch too, which nobody reads


def plain_losses(outputs: str, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each image or pixel in validation, whatever that of the training: [B], or [B, H, W].

    It is the cross-entropy of a class, the mean binary cross-entropy of labels, or the mean squared error of numbers.
    """
    if outputs == "labels":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(-1)
    if outputs == "numbers":
        return F.mse_loss(logits, targets, reduction="none").mean(-1)
    return F.cross_entropy(logits, targets, reduction="none")


def answers(outputs: str, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the answers to images as `train.measures` has them: whether they are right, or outputs and targets."""
    return logits.argmax(-1) == targets if outputs == "class" else torch.stack([logits, targets], 1)
