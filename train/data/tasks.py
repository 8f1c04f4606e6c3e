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
