"""The stored images of a source: those to train on, those held out of them for validation, and those to test on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from train.data.identity import Identity, check_same_classes, class_names
from train.data.images import shuffled
from train.data.sources import SOURCES, open_source


class StoredImages:
    """Each set is opened when it is first asked for: a test needs no training images.

    Args:
        source: a name in SOURCES.
        root: where the files are.
        val_fraction: share of the training images that is held out.
    """

    def __init__(self, source: str, root: str, val_fraction: float):
        self.source, self.root, self.val_fraction = source, root, val_fraction
        self.num_classes = SOURCES[source].classes or 0  # of a folder when one of its sets is open
        self._classes: dict[str, list[str]] = {}  # by whose they are
        self._trained: Mapping[str, Any] | None = None

    def of_checkpoint(self, state: Mapping[str, Any]) -> None:
        """What a model was trained on, as the state of its data says: an error where these classes are others, or
        where what is validated on would be what was trained on."""
        self._trained = state
        if "classes" in state:  # not in those of old checkpoints, or of models trained elsewhere
            self.agree("the checkpoint", state["classes"])
        if self._train_is_open():
            self._check_split()

    def state(self) -> dict[str, Any]:
        """What tells a checkpoint's training images from others, once they are open."""
        return self.identity.state() if self._train_is_open() else {}

    def open(self, name: Literal["train", "test"]) -> int:
        """Opens one of the sets, if it is not open yet, and says how many classes there are."""
        getattr(self, name)
        return self.num_classes

    @cached_property
    def train(self) -> Any:
        return self._open(train=True)

    @cached_property
    def test(self) -> Any:
        return self._open(train=False)

    @cached_property
    def identity(self) -> Identity:
        return Identity.of(self.train)

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Which of the training images are trained on, in one fixed random order, and which are held out."""
        order = shuffled(len(self.train))
        count = max(1, round(len(order) * self.val_fraction))
        return order[count:], order[:count]

    def held_out(self, split: str) -> tuple[Any, Tensor]:
        """A dataset, and which of its images are those of a split: `val` or `test`."""
        if split == "val":
            self._check_split()
            return self.train, self.parts[1]
        return self.test, shuffled(len(self.test))

    def _train_is_open(self) -> bool:
        return "train" in self.__dict__  # where cached_property keeps it

    def _open(self, train: bool) -> Any:
        dataset = open_source(self.source, Path(self.root).expanduser(), train)
        names = class_names(dataset)
        if len(names) == 1:
            raise ValueError(f"{self.root} has one class only, {names[0]}: nothing to tell apart.")
        self.agree(f"the {'training' if train else 'test'} images", names)
        if names and len(names) != (self.num_classes or len(names)):
            raise ValueError(
                f"{self.source} has {self.num_classes} classes, and {self.root} {len(names)}: a part of it, or other "
                f"images, are a folder, --data.source folder."
            )
        self.num_classes = self.num_classes or len(names)
        return dataset

    def agree(self, who: str, names: list[str]) -> None:
        """An error where labels would mean something else in another set, or in the checkpoint."""
        for whose, theirs in self._classes.items():
            check_same_classes(theirs, names, f"{whose} and {who}")
        self._classes[who] = names

    def _check_split(self) -> None:
        if self._trained is not None:
            self.identity.check_split(self.root, self.val_fraction, self._trained)
