"""Losses of a classifier, by name, with class weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from performer_string.utils.validation import check_types
from train.utils.ranges import check_range

BALANCED = "balanced"


@dataclass
class LossConfig:
    """Settings of the loss. Label smoothing is `optim.label_smoothing` for all losses.

    Attributes:
        name: name in `LOSSES`, looked up when a training begins: `cross-entropy`; `bce`, binary cross-entropy of each
            class, as in "ResNet strikes back" (arXiv:2110.00476); `focal`, binary too, with less weight for
            well-classified samples (arXiv:1708.02002); or `squared-error`. Several labels of each image take the
            binary ones, and numbers the last.
        class_weights: weight of each class, in the order of the labels; `balanced` for the inverse of their frequency
            in the training images, with a mean of 1 over these images; none for equal weights. The weighted
            cross-entropy is a mean over the batch of each process, so that it depends a little on their number.
        focal_gamma: exponent gamma of the focal loss, in (1 - p)^gamma.
    """

    name: str = "cross-entropy"
    class_weights: list[float] | Literal["balanced"] | None = None
    focal_gamma: float = 2.0

    def __post_init__(self) -> None:
        check_types(self)
        weights = self.class_weights
        if isinstance(weights, str):
            if weights != BALANCED:
                raise ValueError(f"class_weights must be balanced, numbers for all classes, or none, not {weights!r}.")
        elif weights is not None and (min(weights, default=0.0) < 0 or sum(weights) <= 0):
            raise ValueError(f"class_weights must be 0 or more, and one of them above 0, not {weights}.")
        check_range(self, "focal_gamma", least=0)


def soft_labels(targets: Tensor, classes: int, smoothing: float) -> Tensor:
    """Return labels as probabilities.

    Args:
        targets: classes [B], or probabilities [B, classes] of mixed images.
        classes: number of classes.
        smoothing: share of the probability that is spread over all classes.

    Returns:
        Probabilities, [B, classes].
    """
    labels = F.one_hot(targets, classes).float() if targets.ndim == 1 else targets
    return labels * (1 - smoothing) + smoothing / classes


def cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, config: LossConfig
) -> Tensor:
    """Return torch's cross-entropy, or zero for a batch in which all class weights are 0, or no pixel has a class."""
    if targets.is_floating_point() or (weights is None and targets.ndim == 1):
        return F.cross_entropy(logits, targets, weights, label_smoothing=smoothing)
    total = F.cross_entropy(logits, targets, weights, label_smoothing=smoothing, reduction="sum")
    labelled = targets >= 0  # pixels may have no class
    weight = (labelled if weights is None else weights[targets.clamp(min=0)] * labelled).sum()
    return total / torch.where(weight > 0, weight, 1.0)


def binary(logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, config: LossConfig) -> Tensor:
    """Return the binary cross-entropy, the mean over samples and classes."""
    labels = soft_labels(targets, logits.shape[-1], smoothing)
    return F.binary_cross_entropy_with_logits(logits, labels, weights)


def focal(logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, config: LossConfig) -> Tensor:
    """Return the focal loss without the factor alpha, the mean over samples and classes."""
    labels = soft_labels(targets, logits.shape[-1], smoothing)
    losses = sigmoid_focal_loss(logits, labels, alpha=-1, gamma=config.focal_gamma)
    return (losses if weights is None else losses * weights).mean()


def squared_error(
    outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, config: LossConfig
) -> Tensor:
    """Return the squared error of numbers [B, n], the mean over samples and numbers."""
    return F.mse_loss(outputs, targets)


Loss = Callable[[Tensor, Tensor, "Tensor | None", float, LossConfig], Tensor]
LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "bce": binary,
    "focal": focal,
    "squared-error": squared_error,
}


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """Return weights in inverse proportion to the frequency of each class, with a mean of 1 over the labels.

    Args:
        labels: labels of the training images, [N].
        classes: number of classes; a class without an image has the weight 0.
    """
    counts = torch.bincount(labels, minlength=classes).float()
    present = counts > 0
    weights = torch.where(present, len(labels) / (present.sum() * counts.clamp(min=1)), 0.0)
    return weights


def class_weights(config: LossConfig, classes: int, labels: Tensor | None) -> Tensor | None:
    """Return the weight of each class, [classes]; None where all are equal.

    Args:
        config: settings of the loss.
        classes: number of classes.
        labels: labels of the training images, [N]; None for a source that does not list them.

    Raises:
        ValueError: a number of weights other than `classes`, or `balanced` without labels or with invalid ones.
    """
    weights = config.class_weights
    if weights is None:
        return None
    if isinstance(weights, str):
        if labels is None:
            raise ValueError(
                "class_weights: balanced needs a source that lists its labels (targets), and this one draws or streams "
                "its images. Give a number for each class."
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(f"the labels go from {labels.min()} to {labels.max()}: {classes} are numbered from 0.")
        return balanced_weights(labels, classes)
    if len(weights) != classes:
        raise ValueError(f"class_weights must hold {classes} numbers, one for each class, not {len(weights)}.")
    return torch.tensor(weights)
