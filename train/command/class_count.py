"""Give a model as many classes as its data has, where the command does not name a number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from train.command.recipe import options_of
from train.data.sources import SOURCES

FIELD = "model.vit.num_classes"


def take_class_count(config: Any, arguments: Sequence[str]) -> None:
    """Set `model.vit.num_classes` to the number of class folders, unless the command names a number or resumes a run.

    The number in a recipe is that of the images that the recipe was written for. Sources without class folders are
    left alone: `CheckData` compares the numbers once they are open.

    Args:
        config: configuration of `fit`, which is changed.
        arguments: arguments of the command line.
    """
    source, root = SOURCES.get(config.data.source), Path(config.data.root).expanduser()
    named = any(sets_classes(*option) for option in options_of(arguments))
    if source is None or source.count is None or named or config.ckpt_path:
        return
    classes = source.count(root)
    if classes > 1 and classes != config[FIELD]:
        rank_zero_info(
            f"{root} has {classes} folders of classes: {FIELD} is {classes}, not the recipe's {config[FIELD]}."
        )
        config[FIELD] = classes


def sets_classes(name: str, value: str) -> bool:
    """Return whether an option sets the number of classes, by itself or in a group of fields."""
    return name == FIELD or (name in ("model", "model.vit") and "num_classes" in value)
