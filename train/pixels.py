"""Metrics of models with a dense head: confusions of classes, and intersection over union."""

from __future__ import annotations

import torch
from torch import Tensor

from train.checkpoint import Trained
from train.data.sizes import Size
from train.data.unlabelled import IGNORED
from train.measures import MIOU
from train.testing import batches

FEWEST = 8  # least images of each size to measure, where there are enough


def confusion(answers: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the number of pixels of each class (rows) with each answer (columns), [classes, classes].

    Pixels without a class do not count.
    """
    from torchmetrics.functional.classification import multiclass_confusion_matrix  # slow to import

    return multiclass_confusion_matrix(answers, labels, classes, ignore_index=IGNORED, validate_args=False)


def mean_iou_with_interval(counts: Tensor) -> tuple[float, float, float]:
    """Return the mIoU in % over all images, and its 95 % interval by the percentile bootstrap over images.

    Args:
        counts: confusion counts of each image, [N, classes, classes]. Images without a labelled pixel do not count.

    Raises:
        ValueError: no labelled pixel in any image.
    """
    counts = counts[counts.sum((1, 2)) > 0]
    if not len(counts):
        raise ValueError("no pixel of these images has a class, so that there is nothing to measure.")

    return MIOU.interval(counts.numpy())


def image_count(trained: Trained, size: Size, split: str, wanted: int) -> int:
    """Return the number of images of a split to measure: the larger they are, the fewer."""
    total = wanted or len(trained.data.held_out(split, size))  # type: ignore[arg-type]
    share = Size.of(trained.data.size).side / size.side
    return min(total, max(FEWEST, round(total * min(1.0, share))))


@torch.inference_mode()
def confusions(trained: Trained, size: Size, split: str, number: int, device: torch.device, title: str = "") -> Tensor:
    """Return the confusion of each held-out image of a size, [N, classes, classes]; arguments are as in `batches`."""
    vit, found = trained.classifier.vit.to(device), []
    with vit.cached():
        for images, labels in batches(trained, size, split, number, device, title):
            answers = vit(images).argmax(1).cpu()
            found += [confusion(a, b, vit.config.num_classes) for a, b in zip(answers, labels, strict=True)]
    return torch.stack(found)
