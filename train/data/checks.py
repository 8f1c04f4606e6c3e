"""Checks of the options of a data module, before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from performer_string.images.reading import check_background
from performer_string.utils.registry import lookup
from train.data.augmentations import AUGMENTATIONS
from train.data.generated import GeneratedTask
from train.data.memory import BATCHED
from train.data.sizes import Views
from train.data.sources import DEEP, SOURCES
from train.data.tasks import TASKS
from train.utils.ranges import check_range

if TYPE_CHECKING:
    from train.data.module import ImageData


TABLES = ("csv", "tsv", "json", "jsonl", "parquet", "imagefolder", "metadata")  # asked for with a table of labels


def check_source(name: str) -> None:
    """Raise a ValueError unless a source has this name, for a table of labels with the source that reads it."""
    if name.lower() in TABLES and name not in SOURCES:
        raise ValueError(
            f"unknown data source {name!r}. A table of labels, a file metadata.csv with the columns file_name and "
            "label beside the images, is read by --data.source hub; see docs/guides/own-data.md."
        )
    lookup("data source", name, {**TASKS, **SOURCES})


def check_options(data: ImageData) -> None:
    """Raise a ValueError for options that do not apply to the images, or contradict each other."""
    check_background(data.background)
    check_augmentations(data)
    check_shares(data)
    check_sizes(data)
    check_channels(data)
    check_range(data, "batch_size", "val_size", least=1)
    check_range(data, "workers", "train_size", "frame_stride", least=0)


def check_channels(data: ImageData) -> None:
    """Raise a ValueError for a number of channels that does not apply to the images."""
    if not data.channels:
        return
    if data.source not in DEEP:
        raise ValueError(f"channels is of images in {', '.join(DEEP)}: those of {data.source} have their own.")
    if data.channels < 2 or data.grey:
        raise ValueError(f"one channel is data.grey true, without data.channels {data.channels}.")


def check_augmentations(data: ImageData) -> None:
    """Raise a ValueError for augmentations that do not apply to the images, or have invalid options."""
    for name in data.augment:
        lookup("augmentation", name, AUGMENTATIONS)
    check_range(data, "repeats", least=1)
    if data.repeats > 1 and (data.task is not None or data.in_memory):
        given = "in_memory" if data.in_memory else f"the images of {data.source}, which are drawn anew"
        raise ValueError(f"repeats {data.repeats} is for stored images that are augmented one by one, not {given}.")
    if data.task is not None:
        check_symmetries(data, data.task)
    if data.task is None:
        check_masks(data)
    if "rotate-90" in data.augment and data.size[-2] != data.size[-1]:
        raise ValueError(f"rotate-90 turns square images, not {data.size[-2]} x {data.size[-1]}: leave it out.")
    if {"pad-crop", "resized-crop"} <= set(data.augment):
        raise ValueError("pad-crop and resized-crop each cut an image to its size: augment takes one of them.")
    if data.in_memory and (len(data.size) == 3 or not set(data.augment) <= set(BATCHED)):
        raise ValueError(
            f"in_memory is for images, with an augment of {', '.join(BATCHED)} at most, not for "
            f"{data.source} with {', '.join(data.augment) or 'none'}. Leave it out, and take more workers."
        )
    check_range(data, "crop_scale", above=0, most=1)
    if len(data.rand_augment) != 2 or data.rand_augment[0] < 1 or not 0 <= data.rand_augment[1] <= 30:
        raise ValueError(f"rand_augment must be [operations, strength up to 30], not {data.rand_augment}.")


def check_masks(data: ImageData) -> None:
    """Raise a ValueError for augmentations that do not apply to masks, or that only they have."""
    dense = SOURCES[data.source].head == "dense"
    kept = "crop", "resized-crop", "flip", "rotate-90"
    if dense and (others := [name for name in data.augment if name not in kept]):
        raise ValueError(f"augment of images with masks takes {', '.join(kept)}: leave out {', '.join(others)}.")
    if {"crop", "resized-crop"} <= set(data.augment):
        raise ValueError("crop keeps the scale of images, and resized-crop changes it: augment takes one of them.")
    if not dense and "crop" in data.augment:
        raise ValueError(
            f"crop is of images with masks (data.source masks), where any part is an example. Those of {data.source} "
            f"have one class each: take pad-crop or resized-crop."
        )


def check_symmetries(data: ImageData, task: GeneratedTask) -> None:
    """Raise a ValueError for augmentations that change a task's answers, or whose images are always new."""
    changing = [name for name in data.augment if name not in task.symmetries]
    if changing:
        kept = f"only {' and '.join(task.symmetries)} would not" if task.symmetries else "so does every other"
        raise ValueError(
            f"augment has no meaning for the {data.source} task with {', '.join(changing)}, which may change the "
            f"answer ({kept}): leave it out."
        )
    if data.augment and not data.in_memory:
        raise ValueError(
            f"augment has no meaning for the {data.source} task, whose images are new in each epoch: leave out "
            f"{', '.join(data.augment)}, or train on images that are drawn once by data.in_memory true."
        )


def check_shares(data: ImageData) -> None:
    """Raise a ValueError for shares of images that are out of range, or do not apply to generated images."""
    check_range(data, "train_fraction", above=0, most=1)
    check_range(data, "val_fraction", "test_fraction", least=0, below=1)
    if data.train_fraction < 1 and data.task is not None:
        raise ValueError(f"train_fraction is a share of stored images, and those of {data.source} are drawn.")
    if data.test_fraction and data.source != "folder":
        raise ValueError(f"test_fraction splits a source `folder` that is not split, not {data.source}.")


def check_views(views: Views, source: str) -> None:
    """Raise a ValueError for several views of a source other than stored videos."""
    if views.total == 1 or (source in SOURCES and SOURCES[source].axes == 3):
        return
    drawn = source in TASKS and TASKS[source].axes == 3
    why = f"those of {source} are drawn at the very size that is asked for" if drawn else f"{source} has images"
    raise ValueError(f"{views} views are of videos in files, and {why}: leave views out.")


def check_sizes(data: ImageData) -> None:
    """Raise a ValueError for a size of images with a source of videos, or the reverse, or for an invalid stride."""
    axes = data.task.axes if data.task is not None else SOURCES[data.source].axes
    wanted = "height and width, like 96x128" if axes == 2 else "frames, height and width, like 8x72x72"
    for size in data.sizes():
        if len(size) != axes:
            raise ValueError(f"sizes of {data.source} are {wanted}, not {size}.")
    if data.frame_stride and data.source != "videos":
        raise ValueError(
            f"frame_stride is of the frames of data.source videos, and {data.source} has none that lie in files: leave "
            f"out frame_stride {data.frame_stride}."
        )
