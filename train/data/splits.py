"""Stored images, split into training, validation (the source's own, or held out of training) and test sets.

A checkpoint stores a fingerprint of its training images. It is checked, so that a model is not validated on its own
training images, and labels mean the same classes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from performer_string.images.normalisation import BACKGROUND
from train.data.class_folders import sets_in, split_folder
from train.data.classes import class_names, classes_without, fingerprint, first_of, labels_of
from train.data.folders import note_of_forms
from train.data.held_out import drawn_by, hold_out
from train.data.images import share_of_each_class, shuffled
from train.data.sources import SOURCES, open_source
from train.data.split_changes import split_changes

log = logging.getLogger(__name__)


class ImageSplits:
    """Training, validation and test images of a source. Each set is opened on first use.

    Args:
        source: name in `SOURCES`.
        root: folder of the files.
        val_fraction: share of the training images to hold out for validation.
        background: red, green and blue, 0 to 255, beneath transparent images of a folder.
        test_fraction: share of an unsplit folder for the test set; 0 for a folder that is split.
        val_split: whether to use the source's own validation set where it has one besides its test set.
        train_size: number of images to train on, 0 for all.
        train_fraction: share of these in each class, in (0, 1].
        val_by_class: whether to hold out the share of each class; by default in sets whose classes are the user's.
    """

    def __init__(
        self,
        source: str,
        root: str,
        val_fraction: float,
        background: Sequence[int] = BACKGROUND,
        test_fraction: float = 0.0,
        val_split: bool = True,
        train_size: int = 0,
        train_fraction: float = 1.0,
        val_by_class: bool | None = None,
    ):
        self.source, self.root, self.val_fraction, self.background = source, root, val_fraction, background
        self.test_fraction, self.val_split = test_fraction, val_split
        self.train_size, self.train_fraction = train_size, train_fraction
        self.drawn_by = drawn_by(source, val_fraction, val_by_class)
        self.num_classes = SOURCES[source].classes or 0  # known for a folder when a set is open
        self._classes: dict[str, list[str]] = {}  # by the name of the set
        self._trained: Mapping[str, Any] | None = None

    def check_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Check the images, now or when they are opened, against those that a model was trained on.

        Args:
            state: state of the data module in the model's checkpoint.

        Raises:
            ValueError: different classes, or different held-out images.
        """
        self._trained = state
        if "classes" in state:  # missing in old checkpoints and in models trained elsewhere
            self.check_classes("the checkpoint", state["classes"])
        if self._train_is_open():
            self._check_held_out()

    def state(self) -> dict[str, Any]:
        """Return the fingerprint of the training images if they are open."""
        if not self._train_is_open():
            return {}
        own = {} if self.validation is None else {"val_files": len(self.validation)}
        return {**self.fingerprint, "val_split": self.validation is not None, **own}

    def open(self, name: Literal["train", "test"]) -> int:
        """Open a set if it is not open yet (`train` with its validation set), and return the number of classes."""
        for each in (name,) if name == "test" else (name, "validation"):
            getattr(self, each)
        return self.num_classes

    @cached_property
    def train(self) -> Any:
        """The dataset for training, and for validation where images are held out."""
        return self._open(train=True)

    @cached_property
    def test(self) -> Any:
        """The test dataset."""
        return self._open(train=False)

    @cached_property
    def validation(self) -> Any:
        """The source's own validation set; None where it has none, or `val_split` is False."""
        build = SOURCES[self.source].validation
        if build is None or not self.val_split or self.test_fraction or not self.val_fraction:
            return None
        dataset = build(Path(self.root).expanduser())
        return None if dataset is None else self._checked(dataset, "validation")

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """The fingerprint of the training images."""
        return fingerprint(self.train)

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Indices of the images to train on and of the held-out ones, in a fixed random order."""
        if self.validation is not None:
            return hold_out(len(self.train), None, 0)
        train, held = hold_out(len(self.train), self.train_labels(), **self.drawn_by)
        self._warn_of_lost_classes(train)
        return train, held

    def _warn_of_lost_classes(self, indices: Tensor) -> None:
        """Warn of classes without training images."""
        if lost := classes_without(self.train, indices):
            log.warning(
                f"all images of {first_of(lost)} are held out for validation, so that no model can learn "
                f"{'it' if len(lost) == 1 else 'them'}: add images, or lower data.val_fraction ({self.val_fraction})."
            )

    def train_labels(self) -> Tensor | None:
        """Return the labels of the training images, including held-out ones; None where they are not listed."""
        return labels_of(self.train)

    def train_indices(self) -> Tensor:
        """Return the indices of the images to train on.

        Raises:
            ValueError: fewer images than `train_size`, or a share of a source that lists no labels.
        """
        indices, size = self.parts[0], self.train_size
        if size > len(indices):
            raise ValueError(
                f"data.train_size asks for {size} images, and there are {len(indices)} to train on "
                f"(val_fraction={self.val_fraction} are held out). Leave it out for all of them."
            )
        indices = indices[: size or None]
        if self.train_fraction == 1:
            return indices
        if (labels := self.train_labels()) is None:
            raise ValueError(
                f"data.train_fraction takes the same share of each class, which {self.source} does not list."
            )
        return share_of_each_class(indices, labels[indices], self.train_fraction)

    def held_out(self, split: str) -> tuple[Any, Tensor]:
        """Return the dataset of a split, `train`, `val` or `test`, and the indices of its images."""
        if split == "train":
            self._check_held_out()
            return self.train, self.train_indices()
        if split == "val":
            self._check_held_out()
            if self.validation is not None:
                return self.validation, shuffled(len(self.validation))
            return self.train, self.parts[1]
        self._check_test()
        return self.test, shuffled(len(self.test))

    def check_classes(self, name: str, classes: list[str]) -> None:
        """Check that labels mean the same classes as in every other set.

        Args:
            name: name of the set or model, for messages.
            classes: class names in the order of their labels.
        """
        for other, expected in self._classes.items():
            if expected != classes:
                only = sorted(set(expected) ^ set(classes))
                raise ValueError(
                    f"{other} and {name} have different classes, so that their labels would not agree: "
                    f"{first_of(only)} {'is' if len(only) == 1 else 'are'} in one of the two only. Give both the "
                    f"same folders; an empty one cannot stand for a class.{note_of_forms(only)}"
                )
        self._classes[name] = classes

    def _train_is_open(self) -> bool:
        return "train" in self.__dict__  # cached_property stores it there

    def _open(self, train: bool) -> Any:
        root = Path(self.root).expanduser()
        elsewhere = self._trained is not None and not train and sets_in(root)  # no training images
        if self.test_fraction and not elsewhere:
            dataset: Any = split_folder(root, train, self.test_fraction)
        else:
            dataset = open_source(self.source, root, train)
        return self._checked(dataset, "training" if train else "test")

    def _checked(self, dataset: Any, name: str) -> Any:
        """Set the background of a set of images, check its classes against all other sets, and return it."""
        if hasattr(dataset, "background"):
            dataset.background = self.background
        names = class_names(dataset)
        if len(names) == 1 and SOURCES[self.source].outputs == "class":
            raise ValueError(f"{self.root} has one class only, {names[0]}: nothing to tell apart.")
        self.check_classes(f"the {name} images", names)
        if names and len(names) != (self.num_classes or len(names)):
            remedy = "a part of it, or other images, are a folder, --data.source folder"
            if self._trained is not None:
                remedy = "the model's labels mean other classes. Fine-tune it by fit, --init_from, --data.source folder"
            raise ValueError(f"{self.source} has {self.num_classes} classes, and {self.root} {len(names)}: {remedy}.")
        self.num_classes = self.num_classes or len(names)
        return dataset

    def _check_test(self) -> None:
        """Raise a ValueError where a model would be tested on its training or validation images."""
        folder = Path(getattr(self.test, "root", ""))
        if self.test_fraction and folder == Path(self.root).expanduser():  # both parts come from this folder
            self._check_held_out()
        if self._trained is not None and self._trained.get("val_split") and folder.name == "val":
            raise ValueError(
                f"{folder} holds the images that the model was validated on, by which its best checkpoint is chosen, "
                f"and there is no {folder.parent / 'test'}: put the test images there, or take --split val."
            )

    def _check_held_out(self) -> None:
        """Raise a ValueError unless the training images are those of the checkpoint, with the same split."""
        trained = self._trained
        if trained is None:
            return
        own, held = "its own validation images", "images held out of the training images"
        was, now = (own if each else held for each in (trained.get("val_split", False), self.validation is not None))
        if was != now:
            raise ValueError(
                f"the model was validated on {was}, and {self.root} would give {now}. Take the images as they lay then"
                f"{', or --data.val_split false' if now == own else ''}."
            )
        if changes := split_changes(self, trained):
            raise ValueError(
                f"{next(iter(changes.values()))}: the images held out for validation or test would be others, which it "
                f"was trained on. Take what was taken then. Other images to test on lie in a folder of their own, as "
                f"FOLDER/test/CLASS/FILE."
            )
