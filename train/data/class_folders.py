"""Datasets of files in class folders: images, or another kind of file."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torchvision import datasets

from performer_string.images.deep import ARRAY, read_image
from performer_string.images.normalisation import BACKGROUND
from performer_string.utils.log import warn_once
from train.data.folders import EmptyClassError, check_class_names, classes_in, labelled_images, links_to_nothing
from train.utils.output import printable

log = logging.getLogger(__name__)

# Torchvision's endings, and further ones that Pillow reads without plugins.
ENDINGS = {*datasets.folder.IMG_EXTENSIONS, ".gif", ".jfif", ".avif", ".jp2", ".tga"} & {*Image.registered_extensions()}


class ClassFolders(datasets.ImageFolder):
    """A folder of images for each class, searched recursively.

    Hidden files and folders are left out, and so are files that links reach a second time. Files without an ending of
    images are left out with a warning. Arrays in .npy files are images where a class has no others.

    Attributes:
        endings: file endings in lower case.
        kind: kind of the files, for messages.
        background: red, green and blue, 0 to 255, beneath transparent images; the first such image is reported.
    """

    endings: ClassVar[frozenset[str]] = frozenset(ENDINGS)
    kind: ClassVar[str] = "images"
    background: Sequence[int] = BACKGROUND

    def __init__(self, root: Path):
        other: Counter[str] = Counter()

        def is_image(path: str) -> bool:
            ending = Path(path).suffix.lower()
            if ending not in self.endings:
                other[ending] += 1
            return ending in self.endings

        try:
            super().__init__(str(root), loader=self.read, is_valid_file=is_image)
        except EmptyClassError:
            if not other[ARRAY] or self.kind != ClassFolders.kind:
                raise
            self.endings = self.endings | {ARRAY}  # type: ignore[misc]
            other.clear()
            super().__init__(str(root), loader=self.read, is_valid_file=is_image)
        self.reported = torch.zeros((), dtype=torch.bool).share_memory_()  # shared with the worker processes
        if other:
            counted = ", ".join(f"{count} of {ending or 'no ending'}" for ending, count in sorted(other.items()))
            warn_once(log, f"endings in {root}", f"{root}: files that are no {self.kind} are left out: {counted}.")

    def read(self, path: str) -> Image.Image | np.ndarray:
        """Return an image as RGB, on the background where it is transparent, or an array of more bits or channels."""
        image = read_image(path, self.background)
        if isinstance(image, Image.Image) and image.info["laid_on"] and not self.reported:
            self.reported.fill_(True)
            log.warning(
                f"{self.root}: images with transparency, such as {path}, are laid on data.background="
                f"{list(self.background)} (red, green, blue)."
            )
        return image

    @classmethod
    def make_dataset(  # torchvision has a static one, which does not know what the files are
        cls,
        directory: str | Path,
        class_to_idx: dict[str, int],
        extensions: Any = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        """Return the paths of the images with their labels; arguments are those of torchvision's `DatasetFolder`."""
        assert is_valid_file is not None
        return labelled_images(str(directory), class_to_idx, is_valid_file, cls.kind)

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        classes = classes_in(Path(directory))
        if not classes:
            entries = os.listdir(directory)
            images = sum(Path(entry).suffix.lower() in self.endings for entry in entries)
            sort = (
                f", but {images} {self.kind}: move each into a folder of its class, as valprep.sh does for ImageNet's"
            )
            if self.kind == "images" and "metadata.csv" in entries:
                sort += ", or read the labels of metadata.csv by --data.source hub"
            raise FileNotFoundError(f"there is no folder in {directory}{sort if images else ''}.")
        check_class_names(directory, classes)
        if lost := links_to_nothing(str(directory)):
            warn_once(
                log, f"links in {directory}", f"{', '.join(map(printable, lost))}: links to nothing are left out."
            )
        return classes, {name: number for number, name in enumerate(classes)}


class UnsplitFolderError(FileNotFoundError):
    """A folder has class folders, but no training and test sets."""


def image_folder(root: Path, train: bool, download: bool) -> ClassFolders:
    """Return the images `root/train/CLASS/IMAGE` or `root/test/CLASS/IMAGE` (or `root/val`) that Pillow reads."""
    return class_folders(root, train, download, ClassFolders)


def class_folders(root: Path, train: bool, download: bool, kind: type[ClassFolders]) -> ClassFolders:
    """Return the files `root/train/CLASS/FILE` or `root/test/CLASS/FILE` (or `root/val`) as a dataset `kind`."""
    if download:
        raise ValueError(f"a folder of {kind.kind} is not downloaded; leave data.download out.")
    names = ("train",) if train else ("test", "val")
    folders = [root / name for name in names if (root / name).is_dir()]
    if not folders:
        if not sets_in(root) and root.is_dir() and (classes := classes_in(root)):
            above = [root / name for name in classes if sets_in(root / name)]  # `root` is too high or low
            if meant := above or ([root.parent] if root.name in sets_in(root.parent) else []):
                raise FileNotFoundError(
                    f"there is no folder {' or '.join(str(root / name) for name in names)}. Did you mean "
                    f"{meant[0]}, which has {' and '.join(sets_in(meant[0]))}?"
                )
            raise UnsplitFolderError(
                f"{root} has {len(classes)} folders of classes, and neither train nor test: a training splits it by "
                f"--data.test_fraction 0.2. A model that was trained elsewhere is tested on {root / 'test'}/CLASS/FILE."
            )
        raise FileNotFoundError(f"there is no folder {' or '.join(str(root / name) for name in names)}")
    labelled = [folder for folder in folders if classes_in(folder)]
    chosen = (labelled or folders)[0]  # ImageNet's test images have no labels
    return read_folder(chosen, kind)


def validation_folder(root: Path, kind: type[ClassFolders] = ClassFolders) -> ClassFolders | None:
    """Return the dataset of `root/val` if `root/test` has class folders too; None if `root/val` is the test set."""
    if not all((root / name).is_dir() and classes_in(root / name) for name in ("test", "val")):
        return None
    return read_folder(root / "val", kind)


def read_folder(folder: Path, kind: type[ClassFolders]) -> ClassFolders:
    """Return the dataset of a folder of classes, or raise a FileNotFoundError with the expected layout."""
    try:
        return kind(folder)
    except EmptyClassError:  # its message is sufficient
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} must hold a folder of {kind.kind} for each class: {error}") from error


def sets_in(root: Path) -> list[str]:
    """Return the names among train, test and val that exist in a folder; none where it is not split."""
    return [name for name in ("train", "test", "val") if (root / name).is_dir()]


def count_class_folders(root: Path) -> int:
    """Return the number of classes of `root/train`, or of `root` where it is not split; 0 without such folders."""
    folder = root / "train" if sets_in(root) else root
    return len(classes_in(folder)) if folder.is_dir() else 0


def split_folder(root: Path, train: bool, test_fraction: float) -> ClassFolders:
    """Return the training or the test images of an unsplit folder of classes, `root/CLASS/IMAGE`.

    The test set has the same share of each class, chosen at random but equal in all runs.

    Args:
        root: folder of the class folders.
        train: whether to return the training images instead of the test images.
        test_fraction: share of each class in the test set, in (0, 1).

    Raises:
        FileNotFoundError: a missing folder, or a class without an image.
        ValueError: a folder that is split already, or a class with only one image.
    """
    if sets := sets_in(root):
        raise ValueError(f"data.test_fraction is for a folder that is not split, and {root} has {', '.join(sets)}.")
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}.")
    dataset = ClassFolders(root)
    labels, generator, chosen = torch.as_tensor(dataset.targets), torch.Generator().manual_seed(0), list[int]()
    for label, name in enumerate(dataset.classes):
        members = (labels == label).nonzero().flatten()
        if len(members) < 2:
            raise ValueError(f"{root / name} has one image: a class needs two, to train on and to test on.")
        order = members[torch.randperm(len(members), generator=generator)]
        count = min(len(members) - 1, max(1, round(test_fraction * len(members))))
        chosen += (order[count:] if train else order[:count]).tolist()
    dataset.samples = dataset.imgs = [dataset.samples[index] for index in sorted(chosen)]
    dataset.targets = [label for _, label in dataset.samples]
    return dataset
