"""What a training with a dense head needs beside that of a classifier: its metric, and what it excludes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassJaccardIndex

from train.distill import DistillationConfig
from train.loss import LossConfig
from train.optim import OptimConfig

if TYPE_CHECKING:
    from train.checkpoint import Trained
    from train.data.sizes import Size


def mean_iou(classes: int) -> MulticlassJaccardIndex:
    """Return the metric mIoU: intersection over union of each class over all pixels, and their mean over classes."""
    return MulticlassJaccardIndex(classes, average="macro")


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


def confusion(answers: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return how many pixels of each class (rows) are answered by each class (columns), [classes, classes]."""
    pairs = classes * labels.flatten() + answers.flatten()
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def iou_of(counts: Tensor) -> Tensor:
    """Return intersection over union of each class that is there or answered.

    Args:
        counts: as of `confusion`, of one image or summed over several.

    Returns:
        As many as there are such classes, in [0, 1]; their mean is the mIoU.
    """
    both = counts.diagonal()
    either = counts.sum(0) + counts.sum(1) - both
    return both[either > 0] / either[either > 0]


@torch.inference_mode()
def confusions(trained: Trained, size: Size, split: str, number: int, device: torch.device, title: str = "") -> Tensor:
    """Return the confusion of each held-out image of a size, [N, classes, classes]; arguments as of `batches`."""
    from train.testing import batches  # which reads checkpoints by the classifier, and so this module

    vit, found = trained.classifier.vit.to(device), []
    with vit.cached():
        for images, labels in batches(trained, size, split, number, device, title):
            answers = vit(images).argmax(1).cpu()
            found += [confusion(a, b, vit.config.num_classes) for a, b in zip(answers, labels, strict=True)]
    return torch.stack(found)
