"""Folders of images with masks, in which each pixel has the number of its class."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import VisionDataset
from torchvision.tv_tensors import Mask

from performer_string.images.deep import read_image
from performer_string.images.normalisation import BACKGROUND
from performer_string.utils.log import warn_once
from train.data.class_folders import ENDINGS
from train.data.folders import files_in
from train.data.unlabelled import VOID

log = logging.getLogger(__name__)
MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # of one number a pixel
CLASSES = "classes.txt"
LAYOUT = (
    "{root}/train/images/NAME.jpg with {root}/train/masks/NAME.png, the same in {root}/test, and {root}/classes.txt "
    "with the name of a class in each line"
)
TRIED = 8  # number of masks that are read to see whether 255 is a class


def read_classes(path: Path) -> dict[int, str]:
    """Return the names of the classes by their values in masks.

    A line holds the name of the class 0, 1 and so on, or a value and a name, like `255 cell`.

    Raises:
        FileNotFoundError: a missing file.
        ValueError: no class, some lines with values and others without, or a value that occurs twice.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}, which names a class in each line, in the order of the values")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    pairs = [re.fullmatch(r"(\d+)\s+(\S.*)", line) for line in lines]
    if not all(pairs):
        if any(pairs):
            raise ValueError(f"{path}: give a value in each line, like '255 cell', or in none.")
        return dict(enumerate(lines))
    values = {int(pair[1]): pair[2] for pair in pairs if pair}
    if not values or len(values) < len(lines) or max(values) > VOID:
        raise ValueError(f"{path} must give each class a value of its own, from 0 to {VOID}, not {lines}.")
    return values


def values_in(path: str) -> np.ndarray:
    """Return the numbers of a mask, [H, W].

    Raises:
        ValueError: a mask in colours.
        OSError: a file that cannot be read.
    """
    with Image.open(path) as image:
        if image.mode not in MODES:
            raise ValueError(
                f"{path} is an image in mode {image.mode}. A mask has one number for each pixel: save it as a PNG in "
                f"grey (L) or with a palette (P)."
            )
        return np.asarray(image).astype(np.int64)


def paired(root: Path) -> list[tuple[str, str]]:
    """Return the images `root/images/NAME` with their masks `root/masks/NAME.*`, in the order of their names.

    Raises:
        FileNotFoundError: a missing folder, no images, or an image without a mask.
        ValueError: two files of one name.
    """
    found: list[dict[str, str]] = []
    for folder in (root / "images", root / "masks"):
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        paths = [path for path in files_in(str(folder)).values() if Path(path).suffix.lower() in ENDINGS]
        names = {Path(path).relative_to(folder).with_suffix("").as_posix(): path for path in paths}
        if len(names) < len(paths):
            twice = sorted(set(paths) - set(names.values()))
            raise ValueError(f"{folder}: {twice[0]} has the name of another image: rename one of them.")
        found.append(names)
    images, masks = found
    if not images:
        raise FileNotFoundError(f"there is no image in {root / 'images'}")
    if lost := sorted(images.keys() - masks.keys()):
        raise FileNotFoundError(
            f"{len(lost)} of {len(images)} images have no mask, such as {images[lost[0]]}: a mask has the name of its "
            f"image, here {root / 'masks' / lost[0]}.png"
        )
    if spare := sorted(masks.keys() - images.keys()):
        warn_once(log, f"masks in {root}", f"{root}: {len(spare)} masks have no image, such as {masks[spare[0]]}.")
    return [(images[name], masks[name]) for name in sorted(images)]


class MaskFolder(VisionDataset):
    """Images with their masks: pairs of an RGB image and the class of each pixel, uint8 [H, W], `VOID` for none.

    Args:
        root: folder with `images` and `masks`.
        values: names of the classes by their values in masks, in the order of the labels.

    Attributes:
        classes: names of the classes, in the order of the labels.
        samples: paths of the images and of their masks.
        background: red, green and blue, 0 to 255, beneath transparent images.

    Raises:
        FileNotFoundError: a missing folder, no images, or an image without a mask.
        ValueError: masks of 0 and 255 alone, where 255 is no class.
    """

    background: Sequence[int] = BACKGROUND

    def __init__(self, root: Path, values: dict[int, str]):
        super().__init__(str(root))
        self.classes, self.samples = list(values.values()), paired(root)
        self.table = np.full(VOID + 1, -1, np.int16)
        self.table[VOID] = VOID
        self.table[list(values)] = range(len(values))
        if VOID not in values:
            self.check_values(mask for _, mask in self.samples[:: -(-len(self.samples) // TRIED)])

    def check_values(self, masks: Iterable[str]) -> None:
        """Raise a ValueError where some masks hold no other values than 0 and 255, so that 255 seems to be a class."""
        found = {int(value) for path in masks for value in np.unique(values_in(path))}
        if found == {0, VOID}:
            raise ValueError(
                f"masks in {self.root} hold the values 0 and {VOID} only, and {VOID} means no class. Where it is one, "
                f"give the values in {CLASSES}, like '0 background' and '{VOID} cell'."
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Image.Image | np.ndarray, Mask]:
        path, mask = self.samples[index]
        image, values = read_image(path, self.background), values_in(mask)
        height, width = image.shape[-2:] if isinstance(image, np.ndarray) else (image.height, image.width)
        if values.shape != (height, width):
            raise ValueError(
                f"{mask} has {values.shape[0]} x {values.shape[1]} pixels, and its image {path} {height} x {width}: "
                f"they must be of one size."
            )
        inside = np.clip(values, 0, VOID)
        labels = self.table[inside]
        if (unknown := np.unique(values[(labels < 0) | (inside != values)])).size:
            lossy = Path(mask).suffix.lower() in (".jpg", ".jpeg")
            raise ValueError(
                f"{mask} has pixels of {', '.join(map(str, unknown[:8]))}, which are no values of the "
                f"{len(self.classes)} classes in {CLASSES} ({VOID} is of pixels without a class)."
                f"{' A JPEG changes the numbers of pixels: write masks as PNG files.' if lossy else ''}"
            )
        return image, Mask(torch.from_numpy(labels.astype(np.uint8)))


def mask_folder(root: Path, train: bool, download: bool) -> MaskFolder:
    """Return the images and masks of `root/train`, or those of `root/test` (or `root/val`)."""
    if download:
        raise ValueError("a folder of images and masks is not downloaded; leave data.download out.")
    names = ("train",) if train else ("test", "val")
    folders = [root / name for name in names if (root / name).is_dir()] or [root / names[0]]
    return MaskFolder(folders[0], read_classes(root / CLASSES))


def count_mask_classes(root: Path) -> int:
    """Return the number of classes in `root/classes.txt`; 0 without that file."""
    path = root / CLASSES
    return len(read_classes(path)) if path.is_file() else 0


def validation_masks(root: Path) -> MaskFolder | None:
    """Return the images and masks of `root/val` if there is `root/test` too; None if `root/val` is the test set."""
    if not all((root / name / "masks").is_dir() for name in ("test", "val")):
        return None
    return MaskFolder(root / "val", read_classes(root / CLASSES))
