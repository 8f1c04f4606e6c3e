"""Images of the library `datasets`: from the Hub, or from a folder that it saved or can read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from performer_string.images.deep import of_pil
from performer_string.images.normalisation import BACKGROUND

LABELS = ("label", "labels", "cls", "class", "fine_label", "target")  # usual names of the label column, by priority
IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp")  # usual names of the image column, by priority
VALIDATION = ("validation", "val", "valid")
SPLITS = {True: ("train",), False: ("test", *VALIDATION)}
latest: dict[tuple[str, int], Any] = {}  # data set opened last, by its place and modification time


def load(name: str) -> Any:
    """Return the library `datasets`.

    Raises:
        OSError: the package is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise OSError(f"data.source {name} needs the package datasets: pip install datasets") from error
    return datasets


def column(dataset: Any, kinds: tuple[str, ...], names: Sequence[str], what: str) -> str:
    """Return the column of images or labels: the only one with a suitable type, else the first with a usual name.

    Args:
        dataset: dataset of the library `datasets`.
        kinds: class names of suitable features.
        names: usual names of the column, by priority.
        what: content of the column, for the message.

    Raises:
        OSError: no such column.
    """
    of_kind = [name for name, feature in dataset.features.items() if type(feature).__name__ in kinds]
    if len(of_kind) == 1:
        return of_kind[0]
    for name in names:
        if name in (of_kind or dataset.features):
            return name
    remedy = f"name it {names[0]}"
    if what == "labels" and of_kind == [] and list(dataset.features) == ["image"]:
        remedy += ". For a folder of images the table is its metadata.csv, with the columns file_name and label"
    raise OSError(f"no column of {what} among {', '.join(dataset.features)}: {remedy}")


class HubImages(torch.utils.data.Dataset[tuple[Image.Image | np.ndarray, int]]):
    """A split of the library `datasets` as pairs of an image and a class.

    Args:
        dataset: split of the library `datasets`.

    Raises:
        OSError: no column of images or labels, or images without a label.

    Attributes:
        classes: names of the classes in the order of their labels.
        targets: label of each image.
        background: red, green and blue, 0 to 255, beneath transparent images.
    """

    background: Sequence[int] = BACKGROUND

    def __init__(self, dataset: Any):
        self.dataset = dataset
        self.image = column(dataset, ("Image",), IMAGES, "images")
        label = column(dataset, ("ClassLabel",), LABELS, "labels")
        labels = dataset[label][:]  # a column gives its values one by one, which is slow
        if missing := [number for number, value in enumerate(labels) if value is None]:
            raise OSError(
                f"{len(missing)} of {len(labels)} images have no {label}, such as number {missing[0]}, counted from 0: "
                f"give them one, or take them out"
            )
        names = getattr(dataset.features[label], "names", None)
        if names is None:  # labels are numbers or texts
            distinct = sorted(set(labels))
            numbers = {value: number for number, value in enumerate(distinct)}
            names, labels = [str(value) for value in distinct], [numbers[value] for value in labels]
        self.classes, self.targets = list(names), [int(value) for value in labels]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image | np.ndarray, int]:
        try:
            image = self.dataset[int(index)][self.image]
            if image is None:
                raise OSError(f"it has no {self.image}, in which the images of the first samples are")
            return of_pil(image, self.background), self.targets[index]
        except OSError:
            raise
        except Exception as error:  # treated as for files
            raise OSError(f"{type(error).__name__}: {error}") from error


def first_split(splits: Any, train: bool, where: str) -> HubImages:
    """Return the training or the test split of several.

    Raises:
        OSError: no split with a usual name.
    """
    for name in SPLITS[train]:
        if name in splits:
            return HubImages(splits[name])
    raise OSError(f"{where} has the splits {', '.join(splits)}, and none of {', '.join(SPLITS[train])}")


@contextlib.contextmanager
def without_network(datasets: Any) -> Iterator[None]:
    """Let the library read only its cache within a block."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def changed(root: Path) -> int:
    """Return the latest modification time of a folder and its entries in ns; 0 for a name on the Hub."""
    times = [0]
    for path in (root, *root.iterdir()) if root.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            times.append(path.lstat().st_mtime_ns)
    return max(times)


def hub_splits(root: Path, download: bool = False) -> Any:
    """Return the splits of a data set, from `open_splits` or from memory.

    They are opened once for all sets of a training, since that takes seconds for a large data set.
    """
    key = str(root.absolute()), changed(root)
    if key not in latest:
        splits = open_splits(root, download)
        latest.clear()
        latest[key] = splits
    return latest[key]


def open_splits(root: Path, download: bool = False) -> Any:
    """Return the splits of a folder written by `save_to_disk` or read by `load_dataset`, or of a name on the Hub.

    A name needs `download` once. Later calls read the library's cache.

    Raises:
        OSError: a data set that cannot be read, or that needs a download without `download`.
    """
    datasets = load("hub")
    if (root / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(root))
    if root.exists() or download:
        return datasets.load_dataset(str(root))
    try:
        with without_network(datasets):
            return datasets.load_dataset(str(root))
    except OSError as error:
        raise FileNotFoundError(
            f"there is no folder {root}, and a name on the Hub needs --data.download true"
        ) from error


def count_hub_classes(root: Path) -> int:
    """Return the number of classes that a data set declares by a `ClassLabel`; 0 without one.

    It is 0 too for a data set that cannot be read, which is reported when it is opened, and before a download.
    """
    with contextlib.suppress(OSError, RuntimeError):
        splits = hub_splits(root)
        features: dict[str, Any] = next((splits[name].features for name in SPLITS[True] if name in splits), {})
        declared = [feature for feature in features.values() if type(feature).__name__ == "ClassLabel"]
        return len(declared[0].names) if len(declared) == 1 else 0
    return 0


def hub_images(root: Path, train: bool, download: bool) -> HubImages:
    """Return the training or the test split of `hub_splits`."""
    return first_split(hub_splits(root, download), train, str(root))


def hub_validation(root: Path) -> HubImages | None:
    """Return the validation split where there is a test split too; None where it is the test set or is missing."""
    splits = hub_splits(root)
    names = [name for name in VALIDATION if name in splits]
    return HubImages(splits[names[0]]) if names and "test" in splits else None
