"""Classes, labels and fingerprint of a set of images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import datasets

from train.data.mask_folders import MaskFolder


def class_names(dataset: Any) -> list[str]:
    """Return the class names in the order of their labels; folders of images are ordered by name."""
    return [str(name) for name in getattr(dataset, "classes", ())]


def labels_of(dataset: Any) -> Tensor | None:
    """Return the labels of a dataset's images, [N]; None where they are not listed, or are not one class of each."""
    targets = getattr(dataset, "targets", None)
    labels = None if targets is None else torch.as_tensor(targets)
    return None if labels is None or labels.ndim != 1 or labels.is_floating_point() else labels


def classes_without(dataset: Any, indices: Tensor) -> list[str]:
    """Return the classes without an image among `indices`; none where the dataset lists no labels."""
    if (labels := labels_of(dataset)) is None:
        return []
    there = set(labels[indices].unique().tolist())
    return [name for label, name in enumerate(class_names(dataset)) if label not in there]


def first_of(names: Sequence[str]) -> str:
    """Return the first eight names as text for messages."""
    return f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def fingerprint(dataset: Any) -> dict[str, Any]:
    """Return the fingerprint of a set of training images.

    Returns:
        A mapping with `classes` (names of the classes), `files` (number of images) and `names` (hash of the names of a
        folder's files in order, which determine the held-out images; None for other datasets).
    """
    names = None
    if isinstance(dataset, datasets.DatasetFolder | MaskFolder):
        paths = (os.path.relpath(path, dataset.root) for path, _ in dataset.samples)
        names = hashlib.sha256("\n".join(paths).encode("utf-8", "surrogateescape")).hexdigest()
    return {"classes": class_names(dataset), "files": len(dataset), "names": names}
