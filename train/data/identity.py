"""Whether stored images are those that a model was trained on: what tells one set of them from another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchvision import datasets


def class_names(dataset: Any) -> list[str]:
    """In the order of their labels; a folder of images numbers its classes in the order of their names."""
    return [str(name) for name in getattr(dataset, "classes", ())]


def check_same_classes(ours: list[str], theirs: list[str], who: str) -> None:
    """An error where two sets of images number other classes."""
    if ours != theirs:
        only = sorted(set(ours) ^ set(theirs))
        raise ValueError(
            f"{who} have other classes, so that their labels would not agree: "
            f"{', '.join(only[:8])} {'is' if len(only) == 1 else 'are'} in one of the two only. Give both the same "
            f"folders; an empty one cannot stand for a class."
        )


@dataclass(frozen=True)
class Identity:
    """Of a set of training images.

    Attributes:
        classes: their names; none of images that are drawn.
        files: how many images there are, and None of images that are drawn.
        names: digest of the names of a folder's files in their order, which decides what is held out.
    """

    classes: list[str]
    files: int | None = None
    names: str | None = None

    @classmethod
    def of(cls, dataset: Any) -> Identity:
        names = None
        if isinstance(dataset, datasets.DatasetFolder):
            paths = (os.path.relpath(path, dataset.root) for path, _ in dataset.samples)
            names = hashlib.sha256("\n".join(paths).encode("utf-8", "surrogateescape")).hexdigest()
        return cls(class_names(dataset), len(dataset), names)

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def check_split(self, root: str, val_fraction: float, then: Mapping[str, Any]) -> None:
        """An error unless the images are those of the checkpoint, and split alike: else what is validated on would be
        what was trained on."""
        if then.get("files", self.files) != self.files:
            other = f"{root} has {self.files} training images and had {then['files']} when the model was trained on it"
        elif self.names is not None and (then.get("names") or self.names) != self.names:
            other = f"{root} has other training images than when the model was trained on it, or under other names"
        elif (share := then["config"]["val_fraction"]) != val_fraction:
            other = f"val_fraction was {share} when the model was trained, and is {val_fraction}"
        else:
            return
        raise ValueError(
            f"{other}: the images held out for validation would be others, which it was trained on. Take what was "
            f"taken then."
        )
