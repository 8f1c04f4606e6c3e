"""Generated tasks by the name of their source. `ImageData` has a field of the same name for each task's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from performer_string.utils.registry import lookup
from train.data.arrow import ArrowTask
from train.data.cells import CellsTask
from train.data.generated import GeneratedTask
from train.data.marked_contours import MarkedContoursTask
from train.data.moving_arrow import MovingArrowTask
from train.data.pathfinder import PathfinderTask

if TYPE_CHECKING:
    from train.data.module import ImageData

TASKS: dict[str, type[GeneratedTask]] = {
    "arrow": ArrowTask,
    "moving_arrow": MovingArrowTask,
    "pathfinder": PathfinderTask,
    "marked_contours": MarkedContoursTask,
    "cells": CellsTask,
}


def holds_out(source: str, val_fraction: float) -> bool:
    """Return whether images are held out for validation: always of a task, of stored images by their fraction."""
    return source in TASKS or val_fraction > 0


def change_task(data: ImageData, changes: Mapping[str, Any]) -> None:
    """Draw a model's images with other options of its task than in training. Pixels are normalised as in training.

    Args:
        data: data module of the model.
        changes: new values of options, by their names; any images may have none.

    Raises:
        ValueError: images that no task draws, or an unknown option.
        TypeError, ValueError: a value that the task refuses.
    """
    if not changes:
        return
    if data.task is None:
        raise ValueError(f"only a generated task ({', '.join(TASKS)}) has options, not {data.source!r} images.")
    task = getattr(data, data.source)  # a dataclass, as every task
    for name in changes:
        lookup(f"option of the task {data.source}", name, {f.name: f for f in fields(task)})
    data.task = replace(task, **changes)
    setattr(data, data.source, data.task)
