"""Predictions of a model for each of its test images, and statistics of classes and of pairs of models."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eval.accuracy.confusion_matrix import images_note
from eval.models import class_names
from eval.report import ALL_CLASSES, Row
from eval.statistics import mcnemar
from train.checkpoint import Trained
from train.data.sizes import ONE, Size, Views
from train.intervals import accuracy_percent
from train.pixels import confusion
from train.testing import batches, mean_over_views


@dataclass
class Answers:
    """The answers of one model to the images of one size.

    Attributes:
        model: name of the model.
        size: size of the images in pixels.
        split: split that the images belong to, `test`, `val` or `train`.
        classes: names of the classes, in the order of their labels.
        images: dataset of uint8 test images and their classes.
        targets: the class of each image, [N].
        probabilities: probability of each class for each image, [N, classes].
        views: number of views of each video; `probabilities` are their mean.
    """

    model: str
    size: Size
    split: str
    classes: list[str]
    images: Any = field(repr=False)
    targets: Tensor
    probabilities: Tensor
    views: Views = ONE

    @property
    def note(self) -> str:
        """Description of the images for a caption."""
        return images_note(self.split, len(self.targets), self.views)

    @property
    def predicted(self) -> Tensor:
        """The most probable class of each image, [N]."""
        return self.probabilities.argmax(-1)

    @property
    def right(self) -> Tensor:
        """Whether each answer is right, [N]."""
        return self.predicted == self.targets

    def image_name(self, index: int) -> str:
        """Return the path of an image file, or the index in the dataset where images are no files."""
        indices = getattr(self.images, "indices", None)
        number = index if indices is None else int(indices[index])
        samples = getattr(getattr(self.images, "dataset", None), "samples", None)
        return str(number) if samples is None else str(samples[number][0])

    def confusion(self) -> Tensor:
        """Return the number of images of each class (rows) with each answer (columns), [classes, classes]."""
        return confusion(self.predicted, self.targets, len(self.classes))

    def most_confident_errors(self, count: int) -> list[int]:
        """Return the indices of the wrong answers with the highest probability, in descending order."""
        wrong = (~self.right).nonzero()[:, 0]
        order = self.probabilities[wrong].amax(-1).argsort(descending=True, stable=True)
        chosen: list[int] = wrong[order[:count]].tolist()
        return chosen


@torch.inference_mode()
def answer_images(trained: Trained, size: Size, options: argparse.Namespace, device: torch.device) -> Answers:
    """Return the answers of a model to its test images of one size; `options` are those of `eval.checkpoints`."""
    vit = trained.classifier.vit.to(device)
    probabilities, targets = list[Tensor](), list[Tensor]()
    with vit.cached():
        for images, labels in batches(trained, size, options.split, options.images, device, views=options.views):
            probabilities.append(mean_over_views(vit(images).float(), options.views).softmax(-1).cpu())
            targets.append(labels)
    held_out = trained.data.held_out(options.split, size, options.images)
    of_images = torch.cat(targets), torch.cat(probabilities)
    return Answers(trained.name, size, options.split, class_names(vit), held_out, *of_images, options.views)


def class_statistics(answers: Answers) -> Iterator[Row]:
    """Yield accuracy with its interval, precision and most frequent confusion of each class, and of all together.

    Percentages have more digits than tables show. A class without images has no accuracy, and one that is never the
    answer has no precision.
    """
    matrix = answers.confusion()
    for label, name in enumerate(answers.classes):
        total, answered, right = int(matrix[label].sum()), int(matrix[:, label].sum()), int(matrix[label, label])
        others = matrix[label].clone()
        others[label] = 0
        row = {"class": name, **accuracy_cells(right, total)}
        row["precision"] = round(100 * right / answered, 4) if answered else ""
        row["taken for"] = answers.classes[int(others.argmax())] if int(others.sum()) else ""
        row["taken for in %"] = round(100 * int(others.max()) / total, 4) if int(others.sum()) else ""
        yield row
    right, total = int(matrix.diagonal().sum()), int(matrix.sum())
    yield {"class": ALL_CLASSES, **accuracy_cells(right, total), "precision": "", "taken for": "", "taken for in %": ""}


def accuracy_cells(right: int, total: int) -> dict[str, Any]:
    """Return an accuracy in %, its 95 % interval by Wilson, and the number of images."""
    if not total:
        return {"accuracy": "", "low": "", "high": "", "images": 0}
    return accuracy_percent(right, total)


def differences(one: Answers, other: Answers) -> Iterator[Row]:
    """Yield for each class, and for all, the numbers of images on which both models, only one, or neither is right.

    The p-value of McNemar's test is of all classes together.
    """
    for label, name in [*enumerate(one.classes), (None, ALL_CLASSES)]:
        chosen = torch.ones_like(one.right) if label is None else one.targets == label
        first, second = one.right[chosen], other.right[chosen]
        only_one, only_other = int((first & ~second).sum()), int((~first & second).sum())
        yield {
            "class": name,
            "images": int(chosen.sum()),
            "both right": int((first & second).sum()),
            "only model": only_one,
            "only other": only_other,
            "neither": int((~first & ~second).sum()),
            "p": float(f"{mcnemar(only_one, only_other):.4g}") if label is None else "",
        }
