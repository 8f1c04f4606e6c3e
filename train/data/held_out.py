"""Which of the training images are held out for validation: a share of each class, or of all images together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from train.data.images import share_of_each_class, shuffled
from train.data.sources import SOURCES


def drawn_by(source: str, val_fraction: float, val_by_class: bool | None) -> dict[str, Any]:
    """Return what decides the images held out of a source's training set; arguments as of `ImageSplits`."""
    by_class = SOURCES[source].classes is None if val_by_class is None else val_by_class
    return {"val_fraction": val_fraction, **({"val_by_class": True} if by_class else {})}


def hold_out(
    total: int, labels: Tensor | None, val_fraction: float, val_by_class: bool = False
) -> tuple[Tensor, Tensor]:
    """Return indices of the images to train on, in a fixed random order, and of those held out.

    Args:
        total: number of images.
        labels: labels of the images, [total]; None where the source does not list them, which are then drawn together.
        val_fraction: share to hold out; at least one image, unless it is 0.
        val_by_class: hold out this share of each class, and leave at least one image of it to train on.
    """
    order = shuffled(total)
    if val_fraction and val_by_class and labels is not None:
        held = share_of_each_class(order, labels[order], val_fraction, left=1)
        if len(held):  # else every class has one image
            return order[~torch.isin(order, held)], held
    count = max(1, round(total * val_fraction)) if val_fraction else 0
    return order[count:], order[:count]
