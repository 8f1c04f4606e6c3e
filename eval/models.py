"""Load a trained model without the images that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from performer_string import Preprocessing, ViT
from performer_string.models.files.paths import find_checkpoint
from train.data.sizes import ONE, Views
from train.utils.imports import naming_imports

if TYPE_CHECKING:
    from train.checkpoint import Trained

# What a model answers.
WORDS = {"class": "one class", "labels": "labels", "numbers": "numbers", "dense": "a class for each pixel"}


def load_model(
    path: str | PathLike[str], head: str | None = "class", classes: bool = True, videos: bool = False
) -> ViT:
    """Return a trained classifier of images or of pixels on the CPU, in evaluation mode.

    Args:
        path: path of a checkpoint, of a run's folder (its last checkpoint) or of a published model's folder.
        head: required head of the model, `class` or `dense`; None for either.
        classes: whether a model without classes is an error.
        videos: whether it may be a model of videos.

    Raises:
        ValueError: a file that cannot be read, or a model without classes.
    """
    path = find_checkpoint(path)
    with naming_imports():
        vit = ViT.from_checkpoint(path)
    if head is not None:
        check_head(vit, path, head)
    if classes and not vit.config.num_classes:
        raise ValueError(f"{path} is of a model without classes (num_classes: 0), which has no answer.")
    if not (videos and len(vit.patch) == 3):
        check_images(vit, path)
    return vit


def check_images(vit: ViT, path: object) -> None:
    """Raise a ValueError for a model whose inputs are no images, such as videos."""
    if len(vit.patch) != 2:
        kind = {1: "sequences", 3: "videos or volumes"}.get(len(vit.patch), f"inputs of {len(vit.patch)} axes")
        raise ValueError(
            f"{path} is a model of {kind}, and this command takes models of images. `eval predict`, "
            f"`eval resolution` and `eval confusion` take videos; in Python a model takes tensors [B, channels, *size]."
        )


def check_head(vit: ViT, path: object, head: str = "class") -> None:
    """Raise a ValueError where an evaluation is for models with another head."""
    if vit.config.head != head == "class":
        raise ValueError(
            f"{path} has a dense head, with a class for each pixel: python -m eval segment writes masks of images, and "
            f"python -m eval dense measures mIoU."
        )
    if vit.config.head != head:
        raise ValueError(
            f"{path} has one class for each image, and this command takes models with head: dense. For classes of "
            f"images there are python -m eval predict and python -m eval resolution."
        )


def check_counted(outputs: str, path: object) -> None:
    """Raise a ValueError for a model that answers no class, and so cannot be counted as right or wrong."""
    if outputs != "class":
        raise ValueError(
            f"{path} answers {outputs}, and this command is for one class of each image. Its own measures, at any "
            f"size, are in python -m eval resolution, compare, ablation and cost."
        )


def check_views(outputs: str, views: Views) -> None:
    """Raise a ValueError for several views of each video with a model that answers no class."""
    if outputs != "class" and views != ONE:
        raise ValueError(f"--views {views}: the mean over views is of classes. Leave it out.")


def check_same_answers(models: Sequence[Trained]) -> None:
    """Raise a ValueError where models of one table have different metrics."""
    heads = {trained.name: trained.classifier.vit.config.head for trained in models}
    kinds = {each.name: "dense" if heads[each.name] == "dense" else each.data.outputs for each in models}
    if len(set(kinds.values())) > 1:
        raise ValueError(
            f"models of different answers have different metrics: "
            f"{', '.join(f'{name} answers {WORDS[kind]}' for name, kind in kinds.items())}. Evaluate them one after "
            f"the other, with an --out for each."
        )


def preprocessing_of(vit: ViT, path: str | PathLike[str]) -> Preprocessing:
    """Return the preprocessing of a model's images.

    Raises:
        ValueError: a model that does not store it.
    """
    if vit.preprocessing is None:
        raise ValueError(
            f"{path} does not say how its images were normalised: it was trained on data of your own by a version that "
            f"did not store that. In Python, set model.preprocessing = performer_string.Preprocessing(mean=..., "
            f"std=...)."
        )
    return vit.preprocessing


def class_names(vit: ViT) -> list[str]:
    """Return the names of a model's classes in the order of its logits, or their indices where names are not known."""
    names = list(vit.classes)
    return names if len(names) == vit.config.num_classes else [str(i) for i in range(vit.config.num_classes)]
