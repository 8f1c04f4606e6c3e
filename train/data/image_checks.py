"""Checks of images before a training run: unreadable files, and classes that one of the sets lacks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from performer_string.images.deep import as_tensor
from performer_string.images.reading import why_unreadable
from train.data.classes import classes_without, first_of
from train.data.copies import copied_files, describe_copies
from train.data.folders import classes_in
from train.data.images import name_of
from train.data.loader import ignore_stop_signals
from train.data.module import ImageData
from train.utils.output import printable
from train.utils.progress import progress

log = logging.getLogger(__name__)
FOLDERS = {"folder", "imagenet", "videos"}  # sources with class folders in `train` and in `test` or `val`


class Opened(Dataset[tuple[int, str]]):
    """Dataset of the reasons why images cannot be read, or are arrays of other channels; empty for all others."""

    def __init__(self, dataset: Any, channels: int):
        self.dataset, self.channels = dataset, channels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[int, str]:
        try:
            image = self.dataset[index][0]
            if isinstance(image, np.ndarray) and (found := len(as_tensor(image, self.channels))) != self.channels:
                return index, f"an array of {found} channels, where {self.channels} are wanted"
        except Exception as error:  # readers raise many types
            return index, why_unreadable(name_of(self.dataset, index), error)
        return index, ""


def sets_of(data: ImageData) -> Iterator[tuple[str, Any]]:
    """Yield the stored training set, and the test set if there is one."""
    if data.task is not None:
        return  # its images are generated
    yield "train", data.splits().train  # `setup` would read images to measure them
    if data.splits().validation is not None:
        yield "validation", data.splits().validation
    try:
        test = data.splits().test
    except FileNotFoundError:  # a training needs no test set
        return
    yield "test", test


def broken_images(data: ImageData) -> list[tuple[str, str]]:
    """Open every image, with a progress bar, and return the path and reason for each unreadable one."""
    broken = []
    for name, dataset in sets_of(data):
        workers = min(data.workers, os.cpu_count() or 1)
        loader = DataLoader(
            Opened(dataset, data.in_channels),
            64,
            num_workers=workers,
            collate_fn=list,
            worker_init_fn=ignore_stop_signals,
        )
        with progress(total=len(dataset), desc=f"{name} images", unit="image", mininterval=0.5, leave=True) as bar:
            for results in loader:
                broken += [(name_of(dataset, index), reason) for index, reason in results if reason]
                bar.update(len(results))
    return broken


def check_images(data: ImageData) -> None:
    """Print every unreadable image, and what is said of copies, to stdout; exit with status 1 if any is unreadable."""
    broken = broken_images(data)
    for line in describe_copies(copied_files(sets_of(data))):
        print(line)
    for path, reason in broken:
        print(f"{printable(path)}: {reason}")
    if broken:
        what = "one image" if len(broken) == 1 else f"{len(broken)} images"
        sys.stderr.write(f"error: {what} cannot be read: repair or delete the files listed above.\n")
        raise SystemExit(1)
    print("Every image can be read." if data.task is None else "The images are drawn, and need no check.")


def warn_of_validation(data: ImageData) -> None:
    """Warn of validation images by which no best checkpoint can be chosen: without some classes, or one of numbers."""
    if data.task is not None or not data.validates():
        return
    dataset, held = data.splits().held_out("val")
    more = "" if data.splits().validation is not None else f", or raise data.val_fraction ({data.val_fraction})"
    if data.outputs == "numbers" and len(held) == 1:
        log.warning(
            f"validation has one image, whose numbers have no variance: its r2, by which best.ckpt is chosen, is 0 "
            f"unless the answers are exact. Add images{more}."
        )
    if missing := classes_without(dataset, held):
        log.warning(
            f"validation has {len(held)} images, and none of {first_of(missing)}: its accuracy, by which best.ckpt is "
            f"chosen, says nothing of {'it' if len(missing) == 1 else 'them'}. Add images{more}."
        )


def check_test_classes(data: ImageData) -> None:
    """Check by the names of folders that training and test images have the same classes, where both exist.

    Raises:
        ValueError: classes that one of the sets lacks.
    """
    root = Path(data.root).expanduser()
    if data.source not in FOLDERS or not (root / "train").is_dir():
        return
    held = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if labelled := [folder for folder in held if classes_in(folder)]:
        data.splits().check_classes(f"those in {labelled[0]}", classes_in(labelled[0]))
    elif held and any(held[-1].iterdir()):
        log.warning(
            f"{held[-1]} has no folders of classes, so that no model is tested on it: move each image into a folder "
            f"of its class. Validation is held out of {root / 'train'}."
        )
