"""Features of frozen models for `eval knn` and `eval probe`: what the head of a model gets of each image of a split."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from eval import checkpoints
from eval.models import load_model, preprocessing_of
from eval.names import names_of
from eval.report import Row
from eval.values import result_row
from performer_string import ViT
from performer_string.models.config import patch_and_image
from train.checkpoint import Trained, load_trained
from train.data.sizes import Size, image_size
from train.testing import batches
from train.utils.progress import progress
from train.utils.ranges import at_least

if TYPE_CHECKING:
    from train.module import ImageClassifier


@dataclass
class Features:
    """Features of images with their classes.

    Attributes:
        values: features, float32 [N, D] on the CPU.
        labels: class of each image, [N].
    """

    values: Tensor
    labels: Tensor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose models and images."""
    checkpoints.add_arguments(parser)
    other = (
        "other images, of any classes: DIR/train/CLASS/IMAGE, and DIR/test or DIR/val (default: those of the training)"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help=other)
    train = "number of training images to take features of; 0 for all (generated tasks: as in validation)"
    parser.add_argument("--train_images", "--train-images", type=at_least(0), default=0, help=train)
    fit_at = "size of the training images in pixels (default: that of the images that are classified)"
    parser.add_argument("--fit_at", "--fit-at", type=image_size, help=fit_at)


def load_frozen(options: argparse.Namespace) -> list[Trained]:
    """Load the models of `--checkpoint` with their images, and set `--resolutions` where it was not given.

    Raises:
        ValueError: models or images that cannot be evaluated; raised before anything is measured.
    """
    if options.split == "train":
        raise ValueError("--split train: these images are what features are compared with or fitted to: test or val.")
    if options.folder is None:
        models = checkpoints.load_models(options)
    else:
        models = [on_folder(path, options) for path in options.checkpoint]
        for trained, name in zip(models, names_of(options.checkpoint), strict=True):
            trained.name = name
        options.resolutions = options.resolutions or [Size.of(models[0].data.size)]
    for trained in models:
        for size in [*options.resolutions, *([options.fit_at] if options.fit_at else [])]:
            trained.classifier.vit.grid(*size)  # an error for a size of no whole patches
            trained.data.held_out("train", size)
    return models


def on_folder(path: Path, options: argparse.Namespace) -> Trained:
    """Return a model with the images of `--folder` in place of those of its training, which need not be known."""
    from train.data.module import ImageData

    if options.root:
        raise ValueError("--root is the place of the training's images, and --folder has others: give one of the two.")
    vit = backbone(path, options.positions)
    pixels = preprocessing_of(vit, path)
    data = ImageData(
        source="folder",
        root=str(options.folder),
        size=list(patch_and_image(vit.config.patch_size, vit.config.image_size)[1]),
        mean=list(pixels.mean),
        std=list(pixels.std),
        background=list(pixels.background),
        grey=vit.config.in_channels == 1,
        channels=0 if vit.config.in_channels in (1, 3) else vit.config.in_channels,
    )
    data.setup()
    return Trained(path, cast("ImageClassifier", SimpleNamespace(vit=vit)), data, {})


def backbone(path: Path, positions: str | None) -> ViT:
    """Return a model of images, with or without classes, in evaluation mode; `positions` is as in `ViTConfig`."""
    vit = load_model(path, classes=False)
    if positions in (None, vit.config.positions):
        return vit
    return load_trained(path, positions=positions).classifier.vit


@torch.no_grad()
def features_at(trained: Trained, size: Size, split: str, number: int, device: torch.device) -> Features:
    """Return the features of the images of a split at a size in pixels; 0 images for all."""
    vit = trained.classifier.vit.to(device)
    values, labels = list[Tensor](), list[Tensor]()
    with vit.cached():
        for images, targets in batches(trained, size, split, number, device, f"{trained.name}, {split} at {size}"):
            tokens, mask = vit.forward_features(images), vit.participating(images)
            values.append(vit.forward_head(tokens, pre_logits=True, patch_mask=mask).float().cpu())
            labels.append(targets)
    return Features(torch.cat(values), torch.cat(labels))


def measure(
    models: Sequence[Trained],
    options: argparse.Namespace,
    device: torch.device,
    classify: Callable[[Trained, Features, Features, Size], tuple[Tensor, dict[str, Any]]],
) -> Iterator[Row]:
    """Yield the row of each model and size.

    Args:
        models: models of `load_frozen`.
        options: options of the command line.
        device: device to compute on.
        classify: function of a model, its training features, those of the images to classify, and the size of the
            training images. It returns a class for each image, and further columns.
    """
    for trained in progress(models, "models", only_lines=True):
        fitted: dict[Size, Features] = {}
        for size in options.resolutions:
            at = options.fit_at or size
            if at not in fitted:
                fitted = {at: features_at(trained, at, "train", options.train_images, device)}
            found = features_at(trained, size, options.split, options.images, device)
            answers, columns = classify(trained, fitted[at], found, at)
            yield {
                **result_row(trained, size, answers == found.labels, options.split),
                "features": found.values.shape[1],
                "training images": len(fitted[at].labels),
                "fitted at": at,
                **columns,
            }


def classes_of(features: Sequence[Features]) -> int:
    """Return the number of classes in several sets of features."""
    return 1 + max(int(each.labels.max()) for each in features)
