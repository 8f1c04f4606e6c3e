"""A check that all processes of a training read the same images."""

from __future__ import annotations

import hashlib
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from train.data.classes import fingerprint, labels_of
from train.data.module import ImageData

WHERE = "machine"  # entry of a description that is no property of the images


def describe(data: ImageData) -> dict[str, Any]:
    """Return what identifies the stored images of a data module by name; nothing for a generated task."""
    if data.task is not None:
        return {}
    splits, found = data.splits(), dict[str, Any]()
    sets = {"training": splits.train, "validation": splits.validation, "test": splits.test if data.watch_test else None}
    for name, dataset in sets.items():
        if dataset is None:
            continue
        of_set = splits.fingerprint if dataset is splits.train else fingerprint(dataset)
        labels = labels_of(dataset)
        found[f"number of {name} images"] = of_set["files"]
        found[f"names of {name} files"] = of_set["names"]
        found[f"classes of {name} images"] = digest("\n".join(of_set["classes"]).encode("utf-8", "surrogateescape"))
        found[f"labels of {name} images"] = None if labels is None else digest(labels.long().numpy().tobytes())
    return found


def digest(content: bytes) -> str:
    """Return a hash of the content, since lists of a million images are long to send."""
    return hashlib.sha256(content).hexdigest()


def check_ranks(data: ImageData) -> None:
    """Compare the images of this process with those of all others; nothing is read where it is alone.

    Args:
        data: data module of this process.

    Raises:
        ValueError: in every process, where they differ; it names the ranks that do.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, {WHERE: socket.gethostname(), **describe(data)})
    if message := differences(everyone):
        raise ValueError(message)


def differences(everyone: Sequence[dict[str, Any]]) -> str:
    """Return a message on the ranks whose images differ from those of most ranks; empty where none do.

    Args:
        everyone: descriptions of all ranks, in order.
    """
    plain = [{key: value for key, value in each.items() if key != WHERE} for each in everyone]
    counts = Counter(map(repr, plain))
    most = next(each for each in plain if counts[repr(each)] == max(counts.values()))
    lines = []
    for rank, (each, one) in enumerate(zip(everyone, plain, strict=True)):
        if one == most:
            continue
        texts = [
            f"{key} ({one.get(key)}, not {most.get(key)})" if isinstance(one.get(key), int) else key
            for key in {**most, **one}
            if one.get(key) != most.get(key)
        ]
        lines.append(f"  rank {rank} on {each[WHERE]}: other {', '.join(texts)}")
    if not lines:
        return ""
    return (
        "the processes of this training do not read the same images:\n" + "\n".join(lines) + "\nCopy the data set "
        "again to where it differs, or put it where all machines read it, and give that folder as --data.root."
    )
