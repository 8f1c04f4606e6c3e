"""Images in the folders of their classes: which files count, and each once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from performer_string.utils.log import warn_once
from train.utils.output import printable

log = logging.getLogger(__name__)

NOT_LOOKED_INTO = {"__MACOSX", "@eaDir", "$RECYCLE.BIN"}  # copies and thumbnails that systems make, beside hidden ones


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is no part of a dataset, such as .ipynb_checkpoints, .thumbs or .Trash-1000."""
    return name.startswith(".") or name in NOT_LOOKED_INTO


def classes_in(folder: Path) -> list[str]:
    """Return the names of a folder's folders in their order, without hidden ones."""
    return sorted(inside.name for inside in folder.iterdir() if inside.is_dir() and not is_hidden(inside.name))


def check_class_names(folder: str | Path, names: Iterable[str]) -> None:
    """Warn of names of classes that look alike; they differ in case, or in spaces at their ends.

    Raises:
        ValueError: a name that is not UTF-8, which no table or configuration can hold.
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        if printable(name) != name:
            shown = printable(os.path.join(folder, name))
            raise ValueError(
                f"the name of the folder {shown} has bytes that are no text, or control characters: rename it."
            )
        alike.setdefault(name.strip().casefold(), []).append(name)
    for group in alike.values():
        if len(group) > 1:
            shown = " and ".join(map(repr, group))
            text = f"{folder}: {shown} are taken for different classes. Rename one of them where they are not."
            warn_once(log, f"{folder} {shown}", text)


def files_in(folder: str) -> dict[str, str]:
    """Return the files of a folder and of all folders inside, without hidden ones and what these hold.

    Links are followed. A file or folder that is reached twice counts once, by its path without links if it has one.
    A link to a folder that holds this one is left out, and so are pipes, sockets and devices.

    Returns:
        Paths by what they lead to, in the order of their folders and then of their names.
    """
    top = os.path.realpath(folder)
    folders, folder_links, file_links = [folder], list[str](), list[str]()
    entered, files = set[str](), dict[str, str]()
    while folders or folder_links:  # links last, so that what they lead to has its own path
        path = folders.pop() if folders else folder_links.pop(0)
        real = os.path.realpath(path)
        if real in entered or (real != top and f"{top}{os.sep}".startswith(f"{real.rstrip(os.sep)}{os.sep}")):
            continue
        entered.add(real)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if is_hidden(entry.name):
                continue
            if entry.is_file(follow_symlinks=False):  # most are, and the listing says so without a call for each
                files[os.path.join(real, entry.name)] = entry.path
            elif os.path.isdir(entry.path):
                (folder_links if entry.is_symlink() else folders).append(entry.path)
            elif entry.is_symlink() and (os.path.isfile(entry.path) or not os.path.exists(entry.path)):
                file_links.append(entry.path)  # and not a pipe, a socket or a device, whose reading might never end
    for path in file_links:
        files.setdefault(os.path.realpath(path), path)
    return dict(sorted(files.items(), key=lambda pair: os.path.split(pair[1])))


def labelled_images(root: str, classes: dict[str, int], is_image: Callable[[str], bool]) -> list[tuple[str, int]]:
    """Return the paths of the images in the folders of classes, each with its label.

    Args:
        root: the folder that holds a folder for each class.
        classes: labels by the names of these folders.
        is_image: whether a path is that of an image.

    Raises:
        FileNotFoundError: a class without an image.
        ValueError: links bring an image into two classes.
    """
    samples: list[tuple[str, int]] = []
    known: dict[str, str] = {}
    for name in sorted(classes):
        images = {real: path for real, path in files_in(os.path.join(root, name)).items() if is_image(path)}
        if not images:
            raise FileNotFoundError(f"there is no image in {os.path.join(root, name)}.")
        for real in images.keys() & known.keys():
            raise ValueError(
                f"{known[real]} and {images[real]} are the same image by a link, in two classes: an image has one "
                f"class. Take one of them away."
            )
        known |= images
        samples += [(path, classes[name]) for path in images.values()]
    return samples
