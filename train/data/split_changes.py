"""Compare the held-out images of a data module with those of an earlier training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.data.held_out import drawn_by
from train.data.sources import SOURCES

if TYPE_CHECKING:
    from train.data.splits import ImageSplits


def split_changes(splits: ImageSplits, trained: Mapping[str, Any]) -> dict[str, str]:
    """Return messages on changes by which other images are held out: of `files`, or of a field of the data.

    Args:
        splits: images with an opened training set.
        trained: state of the data module in the checkpoint of the earlier training.
    """
    files, names = splits.fingerprint["files"], splits.fingerprint["names"]
    changes: dict[str, str] = {}
    if trained.get("files", files) != files:
        changes["files"] = (
            f"{splits.root} has {files} training images and had {trained['files']} when the model was trained"
        )
    elif names is not None and (trained.get("names") or names) != names:
        changes["files"] = (
            f"{splits.root} has other training images than when the model was trained, or under other names"
        )
    for name in ("val_fraction", "test_fraction"):
        was, now = trained["config"].get(name, 0.0), getattr(splits, name)
        if was != now:
            changes[name] = f"{name} was {was} when the model was trained, and is {now}"
    by_class = trained["config"].get("val_by_class", False)  # older runs have drawn all classes together
    if drawn_by(splits.source, splits.val_fraction, by_class) != splits.drawn_by:
        changes["val_by_class"] = (
            "data.val_by_class gives other validation images than in that training (false: those of older runs)"
        )
    return changes


def are_same_images(splits: ImageSplits, trained: Mapping[str, Any]) -> bool:
    """Return whether both training runs have the same source, with one folder or the same file names."""
    config, names = trained["config"], splits.fingerprint["names"]
    if config["source"] != splits.source:
        return False
    one_set = SOURCES[splits.source].classes is not None or (names is not None and trained.get("names") == names)
    here, there = (Path(root).expanduser().resolve() for root in (splits.root, config.get("root") or ""))
    return one_set or ("root" in config and here == there)


def seen_images(splits: ImageSplits, trained: Mapping[str, Any] | None) -> str:
    """Return the reason why a model may have been trained on images that are now held out, or an empty text.

    Held-out images come first in a fixed order, so that a smaller share of the same images is part of a larger one.

    Args:
        splits: images with an opened training set.
        trained: state of the data module in the checkpoint of the model; None if it is unknown.
    """
    if trained is None or not are_same_images(splits, trained):
        return ""
    changes = split_changes(splits, trained)
    validates = splits.val_fraction > 0 and splits.validation is None
    if "test_fraction" in changes:
        return changes["test_fraction"]
    if "files" in changes and (validates or splits.test_fraction):
        return changes["files"]
    if validates and trained.get("val_split"):
        return "it was validated on a set of its own, and trained on all training images"
    if validates and "val_by_class" in changes:
        return changes["val_by_class"]
    smaller = splits.val_fraction <= trained["config"].get("val_fraction", 0.0)
    return "" if smaller or not validates else changes.get("val_fraction", "")
