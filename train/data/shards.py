"""Images of WebDataset shards, by the library `datasets`."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.data.classes import first_of
from train.data.hub import SPLITS, VALIDATION, HubImages, load

END_OF_TAR = 1024  # bytes, all zero


def webdataset_images(root: Path, train: bool, download: bool) -> Any:
    """Return the images of the shards `root/train*.tar`, or `root/test*.tar` (or `val*`), or of folders of such names.

    Samples are an image (jpg, png, webp) and a class (cls). The library writes them to its cache once, so that they
    can be read in any order and a resumed run continues exactly.

    Raises:
        OSError: shards that are missing or cannot be read.
    """
    for name in SPLITS[train]:
        if shards := shards_of(root, name):
            return from_shards(name, shards)
    raise FileNotFoundError(f"there is no {SPLITS[train][0]}*.tar in {root}")


def webdataset_validation(root: Path) -> HubImages | None:
    """Return the images of `root/val*.tar` where there are test shards too; None where these are the test set."""
    if not shards_of(root, "test"):
        return None
    names = [name for name in VALIDATION if shards_of(root, name)]
    return from_shards(names[0], shards_of(root, names[0])) if names else None


def shards_of(root: Path, name: str) -> list[str]:
    """Return the paths of the shards of a split."""
    return sorted(map(str, [*root.glob(f"{name}*.tar"), *root.glob(f"{name}/*.tar")]))


def from_shards(name: str, shards: Sequence[str]) -> HubImages:
    """Return the images of the shards of a split.

    Raises:
        OSError: shards that were cut off, or that cannot be read.
    """
    datasets = load("webdataset")
    if cut := [path for path in shards if not ends_as_tar(path)]:  # the library would leave out the rest in silence
        raise OSError(
            f"{len(cut)} of {len(shards)} shards do not end as tar files do, and were probably cut off while they were "
            f"copied: {first_of(cut)}. Copy them again"
        )
    try:
        splits = datasets.load_dataset("webdataset", data_files={name: list(shards)})
    except (datasets.exceptions.DatasetsError, tarfile.TarError, ValueError) as error:
        raise OSError(f"the shards cannot be read: {error.__cause__ or error}") from error
    return HubImages(splits[name])


def ends_as_tar(path: str) -> bool:
    """Return whether a file ends with the two empty blocks that end a tar file."""
    with open(path, "rb") as file:
        file.seek(-min(END_OF_TAR, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read() == bytes(END_OF_TAR)
