"""A check that all processes of a training read the same images."""

from __future__ import annotations

import hashlib
import socket
from typing import Any

import torch

from train.data.classes import fingerprint, labels_of
from train.data.module import ImageData

Description = dict[str, tuple[int, str]]  # number of images, and a hash of their names, classes and labels, by set


def describe_sets(data: ImageData) -> Description:
    """Return what identifies the stored images of a data module by set; nothing for a generated task."""
    if data.task is not None:
        return {}
    splits = data.splits()
    sets = {"training": splits.train, "validation": splits.validation, "test": splits.test if data.watch_test else None}
    return {name: (len(dataset), content_hash(dataset)) for name, dataset in sets.items() if dataset is not None}


def content_hash(dataset: Any) -> str:
    """Return a hash of the file names, classes and labels of a dataset."""
    labels = labels_of(dataset)
    content = repr([fingerprint(dataset), None if labels is None else labels.tolist()])
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()


def check_ranks(data: ImageData) -> None:
    """Compare the images of this process with those of all others; nothing is read where it is alone.

    Args:
        data: data module of this process.

    Raises:
        ValueError: in every process, where they differ; it names the ranks whose images are not those of rank 0.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, (socket.gethostname(), describe_sets(data)))
    lines = [
        f"  rank {rank} on {host}: {other_sets(everyone[0][1], found)}"
        for rank, (host, found) in enumerate(everyone)
        if found != everyone[0][1]
    ]
    if lines:
        raise ValueError(
            f"the processes of this training do not read the images of rank 0 on {everyone[0][0]}:\n"
            + "\n".join(lines)
            + "\nCopy the data set again to where it differs, or put it where all machines read it, and give that "
            "folder as --data.root."
        )


def other_sets(first: Description, found: Description) -> str:
    """Return how the images of a process differ from those of the first one, as text."""
    texts = []
    for name in {**first, **found}:
        (before, _), (now, _) = (each.get(name, (0, "")) for each in (first, found))
        if now != before:
            texts.append(f"{now} {name} images, not {before}")
        elif first[name] != found[name]:
            texts.append(f"{name} images of other names or classes")
    return ", ".join(texts)
