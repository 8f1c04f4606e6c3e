"""Give a model the classes and channels of its data, where the command does not name their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from train.command.recipe import options_of
from train.data.sources import SOURCES, numbers_of
from train.data.tasks import TASKS


def take_data_sizes(config: Any, arguments: Sequence[str]) -> None:
    """Set `model.vit.num_classes` and `in_channels` to those of the data, unless a run is resumed.

    A number that the command names stays, and one in a recipe is that of the images that the recipe was written for.
    Classes that are known only when the images are open are left alone: `CheckData` compares the numbers then.

    Args:
        config: configuration of `fit`, which is changed.
        arguments: arguments of the command line.
    """
    data, source, task = config.data, SOURCES.get(config.data.source), TASKS.get(config.data.source)
    if config.ckpt_path or (source is None and task is None):
        return
    if source is not None and source.count is not None and not is_named("num_classes", arguments):
        root = Path(data.root).expanduser()
        if (classes := source.count(root)) > 1:
            take(config, "num_classes", classes, f"{root} has {classes} classes")
    if not is_named("in_channels", arguments):
        channels, *_ = numbers_of(data.source, None if task is None else task(), data.grey, data.channels)
        counted = f"{channels} channel{'' if channels == 1 else 's'}"
        take(config, "in_channels", channels, f"images of data.source {data.source} have {counted}")


def is_named(name: str, arguments: Sequence[str]) -> bool:
    """Return whether the command sets a field of the model, by itself or in a group of fields."""
    groups = ("model", "model.vit")
    return any(o == f"model.vit.{name}" or (o in groups and name in value) for o, value in options_of(arguments))


def take(config: Any, name: str, number: int, why: str) -> None:
    """Set a field of the model in a configuration to the number of the data, and say so if it is another one."""
    field = f"model.vit.{name}"
    if config[field] != number:
        rank_zero_info(f"{why}: {field} is {number}, not the recipe's {config[field]}.")
        config[field] = number
