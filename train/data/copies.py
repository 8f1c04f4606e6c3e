"""Files of images that are copies of one another, byte for byte."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from train.data.images import name_of
from train.utils.output import printable

Place = tuple[str, str]  # name of a set, and path of a file


def copied_files(sets: Iterable[tuple[str, Any]]) -> list[list[Place]]:
    """Return groups of files of equal content. Only files of equal size are read.

    Args:
        sets: datasets by their names; those that are no files have no copies.
    """
    by_size, by_content = defaultdict[int, list[Place]](list), defaultdict[bytes, list[Place]](list)
    for name, dataset in sets:
        for number in range(len(dataset) if hasattr(dataset, "samples") else 0):
            path = name_of(dataset, number)
            if os.path.isfile(path):
                by_size[os.path.getsize(path)].append((name, path))
    for places in by_size.values():
        for place in places if len(places) > 1 else []:
            by_content[hashlib.sha256(Path(place[1]).read_bytes()).digest()].append(place)
    return [group for group in by_content.values() if len(group) > 1]


def describe_copies(groups: list[list[Place]]) -> Iterator[str]:
    """Yield a line on the copies in each set of files of the first one, which is that of training."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for (first, path), *others in groups:
        for name, other in others:
            found[name, first].append(f"{printable(other)} of {printable(path)}")
    for (name, first), pairs in found.items():
        count = "1 image is a copy" if len(pairs) == 1 else f"{len(pairs)} images are copies"
        where = "others there" if first == name else f"images in {first}"
        yield f"{name}: {count} of {where}, such as {pairs[0]}."
