"""Find the files in class folders, each once."""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from performer_string.utils.log import warn_once
from train.utils.output import printable

log = logging.getLogger(__name__)

NOT_LOOKED_INTO = {"__MACOSX", "@eaDir", "$RECYCLE.BIN"}  # folders of copies and thumbnails made by operating systems


class EmptyClassError(FileNotFoundError):
    """A folder of a class holds no file that can be an item of the data."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is to be ignored, such as .ipynb_checkpoints, .thumbs or .Trash-1000."""
    return name.startswith(".") or name in NOT_LOOKED_INTO


def classes_in(folder: Path) -> list[str]:
    """Return the sorted names of a folder's subfolders, without hidden ones."""
    return sorted(inside.name for inside in folder.iterdir() if inside.is_dir() and not is_hidden(inside.name))


def links_to_nothing(folder: str) -> list[str]:
    """Return the paths of the links in a folder whose targets do not exist, as of classes that have moved."""
    links = (entry.path for entry in os.scandir(folder) if entry.is_symlink() and not is_hidden(entry.name))
    return sorted(path for path in links if not os.path.exists(path))


def check_class_names(folder: str | Path, names: Iterable[str]) -> None:
    """Warn of class names that differ only in case, or in spaces at their ends.

    Raises:
        ValueError: a name that is not UTF-8, which tables and configurations cannot contain.
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


def note_of_forms(names: Collection[str]) -> str:
    """Return a sentence on names that differ only in the form of their accents; empty where there are none."""
    alike = len({unicodedata.normalize("NFC", name) for name in names}) < len({*names})
    return " Some differ only in how Unicode writes their accents, as of macOS." if alike else ""


def files_in(folder: str) -> dict[str, str]:
    """Return the files of a folder and of all its subfolders, without hidden files and folders.

    Links are followed. A file or folder that is reached twice counts once, by its path without links if it has one.
    Links to a parent folder are left out, and so are pipes, sockets and devices.

    Returns:
        Paths by their link targets, in the order of their folders and then of their names.
    """
    top = os.path.realpath(folder)
    folders, folder_links, file_links = [folder], list[str](), list[str]()
    entered, files = set[str](), dict[str, str]()
    while folders or folder_links:  # links last, so that their targets have their own paths
        path = folders.pop() if folders else folder_links.pop(0)
        real = os.path.realpath(path)
        if real in entered or (real != top and f"{top}{os.sep}".startswith(f"{real.rstrip(os.sep)}{os.sep}")):
            continue
        entered.add(real)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if is_hidden(entry.name):
                continue
            if entry.is_file(follow_symlinks=False):  # true for most files, without a system call for each
                files[os.path.join(real, entry.name)] = entry.path
            elif os.path.isdir(entry.path):
                (folder_links if entry.is_symlink() else folders).append(entry.path)
            elif entry.is_symlink() and (os.path.isfile(entry.path) or not os.path.exists(entry.path)):
                file_links.append(entry.path)  # no pipe, socket or device, whose reading might never end
    for path in file_links:
        files.setdefault(os.path.realpath(path), path)
    return dict(sorted(files.items(), key=lambda pair: os.path.split(pair[1])))


def labelled_images(
    root: str, classes: dict[str, int], is_image: Callable[[str], bool], kind: str = "images"
) -> list[tuple[str, int]]:
    """Return the paths of the images in class folders, each with its label.

    Args:
        root: folder that contains a folder for each class.
        classes: labels by the names of these folders.
        is_image: function that returns whether a path is that of an image.
        kind: what the files are, for errors.

    Raises:
        EmptyClassError: classes without an image; the message names all of them.
        ValueError: an image that belongs to two classes through links.
    """
    samples: list[tuple[str, int]] = []
    known: dict[str, str] = {}
    empty: list[str] = []
    for name in sorted(classes):
        images = {real: path for real, path in files_in(os.path.join(root, name)).items() if is_image(path)}
        if not images:
            empty.append(os.path.join(root, name))
        for real in images.keys() & known.keys():
            raise ValueError(
                f"{known[real]} and {images[real]} are the same image by a link, in two classes: an image has one "
                f"class. Take one of them away."
            )
        known |= images
        samples += [(path, classes[name]) for path in images.values()]
    if empty:
        raise EmptyClassError(
            f"there are no {kind} in {', '.join(map(printable, empty))}. Each folder in {printable(root)} is a class: "
            f"put {kind} into those without any, or take these folders away."
        )
    return samples
