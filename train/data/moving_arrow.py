"""The moving-arrow task: which way does the arrow at the base of the Y point, in the frames with a mark?

This is the arrow task over time. Arrows, letters and the Y keep their cells, and in every step of a video each arrow
turns to a random side. One step is marked: by a full square in a free cell, or by showing the Y only in that step. The
class is the direction, in the marked step, of the arrow that the base of the Y points at. A model must compare
positions and times. A longer video has more steps, and a larger one more cells. `python -m train.data.draw
moving_arrow` draws the frames of some videos.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from train.data.arrow import ArrowTask, Distance
from train.data.sizes import Size
from train.utils.ranges import check_range

Mark = Literal["square", "y"]


@dataclass
class MovingArrowTask(ArrowTask):
    """Options of the task, with the cells of the arrow task.

    Attributes:
        arrows: number of arrows, including the target.
        letters: letters besides the Y.
        cell: side of a cell in pixels, at least 8.
        hold: number of frames in a step; equal to the patch size in time.
        mark: mark of the relevant step, `square`: a full square in a free cell, so that a model needs two relations
            (square to step, Y to arrow); `y`: the Y itself, which no other step shows, so that only the second
            relation is needed.
    """

    name: ClassVar[str] = "moving_arrow"
    axes: ClassVar[int] = 3
    distance: ClassVar[Distance] = "adjacent"  # type: ignore[misc]  # no option here

    hold: int = 2
    mark: Mark = "square"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mark not in get_args(Mark):
            raise ValueError(f"mark must be one of {', '.join(get_args(Mark))}, not {self.mark!r}.")
        check_range(self, "hold", least=1)

    def check_size(self, size: Any) -> None:
        """Raise a ValueError for a size without videos."""
        size = Size.of(size)
        if len(size) != 3 or size.height != size.width or size[0] % self.hold:
            raise ValueError(
                f"videos of the moving-arrow task are frames x side x side with a multiple of hold={self.hold} frames, "
                f"like {4 * self.hold}x{6 * self.cell}x{6 * self.cell}, not {size}."
            )
        super().check_size(size.width)

    def example(self, size: Any, seed: int) -> tuple[Tensor, int]:
        """Return a video, uint8 [1, frames, height, width], and its class."""
        rng = np.random.default_rng(seed)
        cells, steps = self.cells(size[-1]), size[0] // self.hold
        placed = self.place(cells, rng)
        free = sorted(
            {(row, column) for row in range(cells) for column in range(cells)} - {cell for cell, *_ in placed}
        )
        mark, marked = free[rng.integers(len(free))], int(rng.integers(steps))
        turns = rng.integers(4, size=(steps, self.arrows))
        arrows = [index for index, (_, name, _) in enumerate(placed) if name == "arrow"]
        frames = []
        for step in range(steps):
            for index, turn in zip(arrows, turns[step], strict=True):
                placed[index] = (placed[index][0], "arrow", int(turn))
            hides_y = self.mark == "y" and step != marked
            frame = self.paint([each for each in placed if not (hides_y and each[1] == "Y")], cells)
            if self.mark == "square" and step == marked:
                top, left = mark[0] * self.cell, mark[1] * self.cell
                frame[top + 2 : top + self.cell - 2, left + 2 : left + self.cell - 2] = 255
            frames += [frame] * self.hold
        return torch.from_numpy(np.stack(frames))[None], int(turns[marked, 0])
