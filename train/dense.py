"""What a training with a dense head needs beside that of a classifier: its metric, and what it excludes."""

from __future__ import annotations

from torchmetrics.classification import MulticlassJaccardIndex

from train.distill import DistillationConfig
from train.loss import LossConfig
from train.optim import OptimConfig


def mean_iou(classes: int) -> MulticlassJaccardIndex:
    """Return the metric mIoU: intersection over union of each class over all pixels, and their mean over classes."""
    return MulticlassJaccardIndex(classes, average="macro", validate_args=False)


def check_dense(optim: OptimConfig, distillation: DistillationConfig, loss: LossConfig) -> None:
    """Raise a ValueError for settings that a dense head excludes."""
    if optim.mixup or optim.cutmix or optim.image_scale > 1:
        raise ValueError(
            "mixup, cutmix and image_scale change images and not the classes of their pixels: leave them out with a "
            "dense head."
        )
    if distillation.teacher:
        raise ValueError("a teacher gives one class for each image: leave out distillation with a dense head.")
    if loss.name != "cross-entropy":
        raise ValueError(f"a dense head is trained by the loss cross-entropy, not by {loss.name}.")
