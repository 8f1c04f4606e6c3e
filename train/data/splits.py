"""Stored images: those to train on, to validate on (the source's own, or held out of the former), and to test on.

A checkpoint says which images it was trained on. They are checked, so that nothing is validated on what it was trained
on, and labels mean the same classes.
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
from train.data.images import share_of_each_class, shuffled
from train.data.sources import SOURCES, open_source

log = logging.getLogger(__name__)


class ImageSplits:
    """Training, validation and test images of a source. Each set is opened when it is first asked for.

    Args:
        source: a name in SOURCES.
        root: where the files are.
        val_fraction: share of the training images that is held out.
        background: colour beneath transparent images of a folder.
        test_fraction: share of a folder that is not split that is tested on; 0 for a folder that is.
        val_split: validate on the source's own validation set where it has one beside its test set.
    """

    def __init__(
        self,
        source: str,
        root: str,
        val_fraction: float,
        background: Sequence[int] = BACKGROUND,
        test_fraction: float = 0.0,
        val_split: bool = True,
    ):
        self.source, self.root, self.val_fraction, self.background = source, root, val_fraction, background
        self.test_fraction, self.val_split = test_fraction, val_split
        self.num_classes = SOURCES[source].classes or 0  # of a folder when one of its sets is open
        self._classes: dict[str, list[str]] = {}  # by what has them
        self._trained: Mapping[str, Any] | None = None

    def check_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Check images, now or when they are opened, against those that a model was trained on.

        Args:
            state: of the model's data, as its checkpoint holds it.

        Raises:
            ValueError: other classes, or other images would be held out.
        """
        self._trained = state
        if "classes" in state:  # not in those of old checkpoints, or of models trained elsewhere
            self.check_classes("the checkpoint", state["classes"])
        if self._train_is_open():
            self._check_held_out()

    def state(self) -> dict[str, Any]:
        """Return the fingerprint of the training images, once they are open."""
        if not self._train_is_open():
            return {}
        own = {} if self.validation is None else {"val_files": len(self.validation)}
        return {**self.fingerprint, "val_split": self.validation is not None, **own}

    def open(self, name: Literal["train", "test"]) -> int:
        """Open one of the sets, if it is not open yet, and return the number of classes; validation with training."""
        for each in (name,) if name == "test" else (name, "validation"):
            getattr(self, each)
        return self.num_classes

    @cached_property
    def train(self) -> Any:
        """The dataset that is trained and validated on."""
        return self._open(train=True)

    @cached_property
    def test(self) -> Any:
        """The dataset that is tested on."""
        return self._open(train=False)

    @cached_property
    def validation(self) -> Any:
        """The source's own validation set; None where it has none, or none is wanted."""
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
        """Indices of the training images to train on, in one fixed random order, and of those that are held out."""
        order = shuffled(len(self.train))
        if self.validation is not None:
            return order, order[:0]
        count = max(1, round(len(order) * self.val_fraction)) if self.val_fraction else 0
        self._warn_of_lost_classes(order[count:])
        return order[count:], order[:count]

    def _warn_of_lost_classes(self, indices: Tensor) -> None:
        """Warn of classes none of whose images are trained on."""
        if lost := classes_without(self.train, indices):
            log.warning(
                f"all images of {first_of(lost)} are held out for validation, so that no model can learn "
                f"{'it' if len(lost) == 1 else 'them'}: add images, or lower data.val_fraction ({self.val_fraction})."
            )

    def train_labels(self) -> Tensor | None:
        """Return the labels of the training images and those held out of them; None where they are not listed."""
        return labels_of(self.train)

    def train_indices(self, size: int = 0, fraction: float = 1.0) -> Tensor:
        """Return which images are trained on.

        Args:
            size: the first so many, 0 for all.
            fraction: share of these, and of each class the same.

        Raises:
            ValueError: fewer images than asked for, or a share of a source that lists no labels.
        """
        indices = self.parts[0]
        if size > len(indices):
            raise ValueError(
                f"data.train_size asks for {size} images, and there are {len(indices)} to train on "
                f"(val_fraction={self.val_fraction} are held out). Leave it out for all of them."
            )
        indices = indices[: size or None]
        if fraction == 1:
            return indices
        if (labels := self.train_labels()) is None:
            raise ValueError(
                f"data.train_fraction takes the same share of each class, which {self.source} does not list."
            )
        return share_of_each_class(indices, labels[indices], fraction)

    def held_out(self, split: str) -> tuple[Any, Tensor]:
        """Return a dataset, and the indices of its images of a split: `val` or `test`."""
        if split == "val":
            self._check_held_out()
            if self.validation is not None:
                return self.validation, shuffled(len(self.validation))
            return self.train, self.parts[1]
        self._check_test()
        return self.test, shuffled(len(self.test))

    def check_classes(self, name: str, classes: list[str]) -> None:
        """Check that labels mean the same classes as those of every other set.

        Args:
            name: of the set or model, for messages.
            classes: in the order of their labels.
        """
        for other, expected in self._classes.items():
            if expected != classes:
                only = sorted(set(expected) ^ set(classes))
                raise ValueError(
                    f"{other} and {name} have different classes, so that their labels would not agree: "
                    f"{', '.join(only[:8])} {'is' if len(only) == 1 else 'are'} in one of the two only. Give both the "
                    f"same folders; an empty one cannot stand for a class."
                )
        self._classes[name] = classes

    def _train_is_open(self) -> bool:
        return "train" in self.__dict__  # where cached_property keeps it

    def _open(self, train: bool) -> Any:
        root = Path(self.root).expanduser()
        elsewhere = self._trained is not None and not train and sets_in(root)  # images that were not trained on
        if self.test_fraction and not elsewhere:
            dataset: Any = split_folder(root, train, self.test_fraction)
        else:
            dataset = open_source(self.source, root, train)
        return self._checked(dataset, "training" if train else "test")

    def _checked(self, dataset: Any, name: str) -> Any:
        """Return a set of images with the background of all, whose classes are those of all other sets."""
        if hasattr(dataset, "background"):
            dataset.background = self.background
        names = class_names(dataset)
        if len(names) == 1:
            raise ValueError(f"{self.root} has one class only, {names[0]}: nothing to tell apart.")
        self.check_classes(f"the {name} images", names)
        if names and len(names) != (self.num_classes or len(names)):
            raise ValueError(
                f"{self.source} has {self.num_classes} classes, and {self.root} {len(names)}: a part of it, or other "
                f"images, are a folder, --data.source folder."
            )
        self.num_classes = self.num_classes or len(names)
        return dataset

    def _check_test(self) -> None:
        """Raise a ValueError where a model would be tested on images that it was trained or validated on."""
        folder = Path(getattr(self.test, "root", ""))
        if self.test_fraction and folder == Path(self.root).expanduser():  # whose files both parts are drawn from
            self._check_held_out()
        if self._trained is not None and self._trained.get("val_split") and folder.name == "val":
            raise ValueError(
                f"{folder} holds the images that the model was validated on, by which its best checkpoint is chosen, "
                f"and there is no {folder.parent / 'test'}: put the test images there, or take --split val."
            )

    def _check_held_out(self) -> None:
        """Raise a ValueError unless the training images are those of the checkpoint and split alike."""
        trained = self._trained
        if trained is None:
            return
        files, names = self.fingerprint["files"], self.fingerprint["names"]
        own, held = "its own validation images", "images held out of the training images"
        was, now = (own if each else held for each in (trained.get("val_split", False), self.validation is not None))
        if was != now:
            raise ValueError(
                f"the model was validated on {was}, and {self.root} would give {now}. Take the images as they lay then"
                f"{', or --data.val_split false' if now == own else ''}."
            )
        if trained.get("files", files) != files:
            change = f"{self.root} has {files} training images and had {trained['files']} when the model was trained"
        elif names is not None and (trained.get("names") or names) != names:
            change = f"{self.root} has other training images than when the model was trained, or under other names"
        elif (share := trained["config"]["val_fraction"]) != self.val_fraction:
            change = f"val_fraction was {share} when the model was trained, and is {self.val_fraction}"
        elif (share := trained["config"].get("test_fraction", 0.0)) != self.test_fraction:
            change = f"test_fraction was {share} when the model was trained, and is {self.test_fraction}"
        else:
            return
        raise ValueError(
            f"{change}: the images held out for validation or test would be others, which it was trained on. Take what "
            f"was taken then. Other images to test on lie in a folder of their own, as FOLDER/test/CLASS/FILE."
        )
