"""Generated tasks by the name of their source. `ImageData` has a field of the same name for each task's options."""

from __future__ import annotations

from train.data.arrow import ArrowTask
from train.data.cells import CellsTask
from train.data.generated import GeneratedTask
from train.data.marked_contours import MarkedContoursTask
from train.data.moving_arrow import MovingArrowTask
from train.data.pathfinder import PathfinderTask

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
