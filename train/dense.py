"""Additions for training with a dense head: its metric, and a check of incompatible settings."""

from __future__ import annotations

from torchmetrics.classification import MulticlassJaccardIndex

from train.data.unlabelled import IGNORED
from train.distill import DistillationConfig
from train.loss import LossConfig
from train.optim import OptimConfig


def mean_iou(classes: int) -> MulticlassJaccardIndex:
    """Return the metric mIoU: the mean over classes of the intersection over union over all pixels with a class."""
    return MulticlassJaccardIndex(classes, average="macro", ignore_index=IGNORED, validate_args=False)


def check_dense(optim: OptimConfig, distillation: DistillationConfig, loss: LossConfig) -> None:
    """Raise a ValueError for settings that are incompatible with a dense head."""
    if optim.mixup or optim.cutmix or optim.image_scale > 1:
        raise ValueError(
            "mixup, cutmix and image_scale change images and not the classes of their pixels: leave them out with a "
            "dense head."
        )
    if distillation.teacher:
        raise ValueError("a teacher gives one class for each image: leave out distillation with a dense head.")
    if loss.name != "cross-entropy":
        raise ValueError(f"a dense head is trained by the loss cross-entropy, not by {loss.name}.")
