"""Sources of images: torchvision's datasets, folders and others, with their channels, classes and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torchvision import datasets
from torchvision.datasets import VisionDataset

from performer_string.images.normalisation import NORMALISATION, grey_level
from performer_string.images.preprocessing import Outputs
from train.data.class_folders import ClassFolders as ClassFolders
from train.data.class_folders import UnsplitFolderError, count_class_folders, image_folder, validation_folder
from train.data.classes import labels_of
from train.data.folders import EmptyClassError
from train.data.generated import GeneratedTask
from train.data.hub import count_hub_classes, hub_images, hub_validation
from train.data.mask_folders import LAYOUT, count_mask_classes, mask_folder, validation_masks
from train.data.shards import webdataset_images, webdataset_validation
from train.data.videos import VideoFolders, video_folder

# Custom sources may import this from here.
from performer_string.images.reading import open_image as open_image  # isort: skip

Build = Callable[[Path, bool, bool], VisionDataset]  # root, train, download


@dataclass(frozen=True)
class Source:
    """A dataset by name.

    Attributes:
        build: function of (root, train, download) that opens the training or the test set.
        where: instructions for a user without the files.
        classes: number of classes; None where the folder determines it.
        channels, mean, std: number of channels of the images, and mean and standard deviation of each.
        axes: number of axes, 2 for images and 3 for videos.
        validation: function that opens the validation set at a root, None where there is none besides the test set.
        head: head of the models, `class`, or `dense` for images with masks (`MaskedImages`).
        outputs: what models answer: one `class` of each image; `labels`, of which it has any number, as numbers from 0
            to 1; or `numbers`. Labels and numbers are `classes` many for each image.
        count: function that counts the classes at a root without reading images or labels, for `take_data_sizes`, 0
            where it cannot; None where nothing quicker than `build` does.
    """

    build: Build
    where: str
    classes: int | None
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    axes: int = 2
    validation: Callable[[Path], Any] | None = None
    head: str = "class"
    outputs: Outputs = "class"
    count: Callable[[Path], int] | None = None

    def with_channels(self, grey: bool, channels: int) -> Source:
        """Return the source with grey images of one channel, or with a number of channels, 0 for its own."""
        if channels:
            return replace(self, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)
        if not grey or self.channels == 1:
            return self
        return replace(self, channels=1, mean=(grey_level(self.mean),), std=(grey_level(self.std),))


def built_in(dataset: Callable[..., VisionDataset]) -> Build:
    """Return the `build` function for a dataset of torchvision."""
    return lambda root, train, download: dataset(str(root), train=train, download=download)


def imagenette(root: Path, train: bool, download: bool) -> VisionDataset:
    """Return Imagenette with a shorter side of 160 pixels."""
    present = (root / "imagenette2-160").is_dir()  # torchvision refuses to download into an existing folder
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
        validation=validation_folder,
    ),
    "folder": Source(
        image_folder,
        "images as {root}/train/CLASS/IMAGE and {root}/test/CLASS/IMAGE",
        None,
        3,
        *NORMALISATION["folder"],
        validation=validation_folder,
        count=count_class_folders,
    ),
    "masks": Source(
        mask_folder,
        LAYOUT,
        None,
        3,
        *NORMALISATION["masks"],
        validation=validation_masks,
        head="dense",
        count=count_mask_classes,
    ),
    "videos": Source(
        video_folder,
        "videos as {root}/train/CLASS/VIDEO and {root}/test/CLASS/VIDEO",
        None,
        3,
        *NORMALISATION["videos"],
        axes=3,
        validation=partial(validation_folder, kind=VideoFolders),
        count=count_class_folders,
    ),
    "hub": Source(
        hub_images,
        "images with labels as {root}: a folder of the library datasets (save_to_disk, parquet), or a name on the Hub",
        None,
        3,
        *NORMALISATION["folder"],
        validation=hub_validation,
        count=count_hub_classes,
    ),
    "webdataset": Source(
        webdataset_images,
        "shards {root}/train*.tar and {root}/test*.tar (or train/*.tar and val/*.tar), of samples with jpg, png or "
        "webp, and cls, the number of the class",
        None,
        3,
        *NORMALISATION["folder"],
        validation=webdataset_validation,
    ),
}


DEEP = ("folder", "masks", "hub", "webdataset")  # sources whose images may have more than 8 bits or 3 channels
LOCAL = (image_folder, mask_folder, video_folder, webdataset_images)  # sources without a download


def open_source(name: str, root: Path, train: bool, download: bool = False) -> VisionDataset:
    """Return the training or the test set of a source.

    Raises:
        FileNotFoundError: its files are missing; the message says what to get, from where, and where to put it.
    """
    source = SOURCES[name]
    try:
        return source.build(root, train, download)
    except (EmptyClassError, UnsplitFolderError):  # their messages are sufficient
        raise
    except (FileNotFoundError, RuntimeError, OSError) as error:
        place = "" if root.is_absolute() else f" in {Path.cwd()}"
        offer = " Or let training download it: --data.download true." if source.build not in LOCAL else ""
        raise FileNotFoundError(
            f"{name}: no usable {'training' if train else 'test'} set under {root}{place} ({error}).\n"
            f"Put there: {source.where.format(root=root)}.{offer} Another place: --data.root DIR "
            f"in training, --root DIR in an evaluation."
        ) from error


def download_source(name: str, root: Path) -> None:
    """Download the missing files of a source to a root."""
    if name != "hub":  # the root of `hub` may be a name, which a new folder would hide
        root.mkdir(parents=True, exist_ok=True)
    for train in (True, False):
        open_source(name, root, train, download=True)


def numbers_of(
    name: str, task: GeneratedTask | None, grey: bool, channels: int = 0
) -> tuple[int, int | None, tuple[float, ...], tuple[float, ...]]:
    """Return the channels, classes (None if a folder determines them), mean and standard deviation of a source."""
    if task is not None:
        return task.in_channels, len(task.classes), *NORMALISATION[name]
    source = SOURCES[name].with_channels(grey, channels)
    return source.channels, source.classes, source.mean, source.std


def pixels_of(name: str, known: bool) -> Literal["uint8", "integers", "any"]:
    """Return what pixels the mean and standard deviation of a source are of, as in `PixelNormalisation`.

    Args:
        name: name of the source or generated task.
        known: whether both are the user's.
    """
    if name in NORMALISATION and name not in DEEP:
        return "uint8"
    return "any" if known or name not in NORMALISATION else "integers"


def outputs_of(name: str) -> Outputs:
    """Return what models of a source or generated task answer, as in `Preprocessing`."""
    return SOURCES[name].outputs if name in SOURCES else "class"


def majority_accuracy(dataset: Any, indices: Tensor, classes: int) -> float:
    """Return the share of the most frequent class among some images; 1 / classes where labels are not listed."""
    labels = labels_of(dataset)
    return 1 / classes if labels is None else float(labels[indices].bincount().max()) / len(indices)
