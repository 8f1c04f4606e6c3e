"""Sources of images: torchvision's datasets and folders of images, each with what its numbers mean."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision import datasets
from torchvision.datasets import VisionDataset

from performer_string.images.normalisation import BACKGROUND, NORMALISATION
from performer_string.images.reading import open_image
from performer_string.utils.log import warn_once
from train.data.folders import check_class_names, classes_in, labelled_images
from train.data.hub import hub_images, webdataset_images

log = logging.getLogger(__name__)

Build = Callable[[Path, bool, bool], VisionDataset]  # root, train, download


@dataclass(frozen=True)
class Source:
    """A dataset by name.

    Attributes:
        build: the training or the test set at a root.
        where: what a user without the files has to do.
        classes: how many there are, or None where the folder says.
        channels, mean, std: of its images.
        pixels: size of the images, or None where they differ.
    """

    build: Build
    where: str
    classes: int | None
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


# The list of torchvision, and what else Pillow reads as it comes.
ENDINGS = {*datasets.folder.IMG_EXTENSIONS, ".gif", ".jfif", ".avif", ".jp2", ".tga"} & {*Image.registered_extensions()}


class ClassFolders(datasets.ImageFolder):
    """A folder of images for each class, with the folders inside of it.

    Hidden files and folders are left out, and so is what links reach a second time. Files of other endings than those
    of images are left out with a warning.

    Attributes:
        background: colour beneath transparent images, of which the first is reported.
    """

    background: Sequence[int] = BACKGROUND

    def __init__(self, root: Path):
        other: Counter[str] = Counter()

        def is_image(path: str) -> bool:
            ending = Path(path).suffix.lower()
            if ending not in ENDINGS:
                other[ending] += 1
            return ending in ENDINGS

        super().__init__(str(root), loader=self.read, is_valid_file=is_image)
        self.reported = torch.zeros((), dtype=torch.bool).share_memory_()  # with the processes that load images
        if other:
            counted = ", ".join(f"{count} of {ending or 'no ending'}" for ending, count in sorted(other.items()))
            warn_once(log, f"endings in {root}", f"{root}: files that are no images are left out: {counted}.")

    def read(self, path: str) -> Image.Image:
        """Return an image as RGB, on the background where it is transparent."""
        image = open_image(path, self.background)
        if image.info["laid_on"] and not self.reported:
            self.reported.fill_(True)
            log.warning(
                f"{self.root}: images with transparency, such as {path}, are laid on data.background="
                f"{list(self.background)} (red, green, blue)."
            )
        return image

    @staticmethod
    def make_dataset(
        directory: str | Path,
        class_to_idx: dict[str, int],
        extensions: Any = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        """Return the paths of the images with their labels; arguments as torchvision's `DatasetFolder` gives them."""
        assert is_valid_file is not None
        return labelled_images(str(directory), class_to_idx, is_valid_file)

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        classes = classes_in(Path(directory))
        if not classes:
            images = sum(Path(entry).suffix.lower() in ENDINGS for entry in os.listdir(directory))
            sort = f", but {images} images: move each into a folder of its class, as valprep.sh does for ImageNet's"
            raise FileNotFoundError(f"there is no folder in {directory}{sort if images else ''}.")
        check_class_names(directory, classes)
        return classes, {name: number for number, name in enumerate(classes)}


def image_folder(root: Path, train: bool, download: bool) -> VisionDataset:
    """Return `root/train/CLASS/IMAGE` or `root/test/CLASS/IMAGE` (or `root/val`): any images that Pillow reads."""
    if download:
        raise ValueError("a folder of images is not downloaded; leave data.download out.")
    names = ("train",) if train else ("test", "val")
    folders = [root / name for name in names if (root / name).is_dir()]
    if not folders:
        unsplit = root.is_dir() and not any((root / name).is_dir() for name in ("train", "test", "val"))
        hint = ". A folder of classes alone is split by --data.test_fraction 0.2" if unsplit else ""
        raise FileNotFoundError(f"there is no folder {' or '.join(str(root / name) for name in names)}{hint}")
    labelled = [folder for folder in folders if classes_in(folder)]
    chosen = (labelled or folders)[0]  # ImageNet's test images have no labels
    if len(labelled) > 1:
        warn_once(log, str(root), f"{labelled[1]} is not used: validation is held out of {root / 'train'}.")
    try:
        return ClassFolders(chosen)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{chosen} has to hold a folder of images for each class: {error}") from error


def split_folder(root: Path, train: bool, test_fraction: float) -> ClassFolders:
    """Return the training or the test images of a folder of classes that is not split, `root/CLASS/IMAGE`.

    Of each class the same share is tested on, at random but the same in all runs.

    Args:
        root: the folder of the classes.
        train: whether the images to train on are wanted.
        test_fraction: share of the images that are tested on.

    Raises:
        FileNotFoundError: no folder, or a class without an image.
        ValueError: a folder that is split already, or a class of one image.
    """
    if split := [name for name in ("train", "test", "val") if (root / name).is_dir()]:
        raise ValueError(f"data.test_fraction is for a folder that is not split, and {root} has {', '.join(split)}.")
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


def built_in(dataset: Callable[..., VisionDataset]) -> Build:
    """Return the builder of a dataset of torchvision."""
    return lambda root, train, download: dataset(str(root), train=train, download=download)


def imagenette(root: Path, train: bool, download: bool) -> VisionDataset:
    """Return Imagenette with images of 160 pixels."""
    present = (root / "imagenette2-160").is_dir()  # torchvision refuses to download over it
    return datasets.Imagenette(str(root), "train" if train else "val", size="160px", download=download and not present)


SOURCES: dict[str, Source] = {
    "mnist": Source(
        built_in(datasets.MNIST), "the four IDX files of MNIST in {root}/MNIST/raw", 10, 1, *NORMALISATION["mnist"]
    ),
    "cifar10": Source(
        built_in(datasets.CIFAR10),
        "cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked in {root}",
        10,
        3,
        *NORMALISATION["cifar10"],
    ),
    "cifar100": Source(
        built_in(datasets.CIFAR100),
        "cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked in {root}",
        100,
        3,
        *NORMALISATION["cifar100"],
    ),
    "imagenette": Source(
        imagenette,
        "imagenette2-160.tgz from https://github.com/fastai/imagenette, unpacked in {root}",
        10,
        3,
        *NORMALISATION["imagenette"],
    ),
    "imagenet": Source(
        image_folder,
        "ImageNet from https://image-net.org as {root}/train/CLASS/*.JPEG and {root}/val/CLASS/*.JPEG",
        1000,
        3,
        *NORMALISATION["imagenet"],
    ),
    "folder": Source(
        image_folder,
        "images as {root}/train/CLASS/IMAGE and {root}/test/CLASS/IMAGE",
        None,
        3,
        *NORMALISATION["folder"],
    ),
    "hub": Source(
        hub_images,
        "images with labels as {root}: a folder of the library datasets (save_to_disk, parquet), or a name on the Hub",
        None,
        3,
        *NORMALISATION["folder"],
    ),
    "webdataset": Source(
        webdataset_images,
        "shards {root}/train*.tar and {root}/test*.tar, of samples with jpg, png or webp, and cls",
        None,
        3,
        *NORMALISATION["folder"],
    ),
}


def open_source(name: str, root: Path, train: bool, download: bool = False) -> VisionDataset:
    """Return the training or the test set of a source.

    Raises:
        FileNotFoundError: its files are missing. It says which to get, from where, and where to put them.
    """
    source = SOURCES[name]
    try:
        return source.build(root, train, download)
    except (FileNotFoundError, RuntimeError, OSError) as error:
        place = "" if root.is_absolute() else f" in {Path.cwd()}"
        offer = " Or let training download it: --data.download true." if source.build is not image_folder else ""
        raise FileNotFoundError(
            f"{name}: no usable {'training' if train else 'test'} set under {root}{place} ({error}).\n"
            f"Put there: {source.where.format(root=root)}.{offer} Another place: --data.root DIR "
            f"in training, --root DIR in an evaluation."
        ) from error


def majority_accuracy(dataset: Any, indices: Tensor, classes: int) -> float:
    """Return the share of the most frequent class among some images; 1 / classes where labels are not listed."""
    targets = getattr(dataset, "targets", None)
    if targets is None:
        return 1 / classes
    return float(torch.as_tensor(targets)[indices].bincount().max()) / len(indices)
