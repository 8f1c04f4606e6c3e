"""The arrow task: find the letter Y and the arrow that the base of the Y points at, and name its direction.

An open generator for the synthetic task of LieRE (arXiv:2406.10322, section 5.2), which was never released. A grid of
12-pixel cells contains arrows and letters at random cells. One letter is a Y rotated to one of four sides, and its base
points at one arrow: the class is that arrow's direction. A model must compare positions, and a larger image has more
cells, not larger ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from performer_string.images.preprocessing import ARROWS
from performer_string.utils.validation import check_types
from train.utils.ranges import check_range

GLYPHS = {  # 8 x 8 pixels, centred in a cell
    "arrow": "...##... ..####.. .######. ##.##.## ...##... ...##... ...##... ...##...",
    "A": "..####.. .##..##. ##....## ##....## ######## ##....## ##....## ##....##",
    "B": "######.. ##...##. ##...##. ######.. ##...##. ##....## ##...##. ######..",
    "C": "..#####. .##....# ##...... ##...... ##...... ##...... .##....# ..#####.",
    "D": "#####... ##..##.. ##...##. ##....## ##....## ##...##. ##..##.. #####...",
    "E": "######## ##...... ##...... ######.. ######.. ##...... ##...... ########",
    "Y": "##....## ##....## .##..##. ..####.. ...##... ...##... ...##... ...##...",
}
DIRECTIONS = ARROWS  # in the order of np.rot90's quarter turns
STEPS = np.array([(-1, 0), (0, -1), (1, 0), (0, 1)])  # (row, column) of each direction

Distance = Literal["adjacent", "ray"]
Placed = tuple[tuple[int, ...], str, int]  # cell (row, column), name of the glyph, and quarter turns


@dataclass
class ArrowTask:
    """Options of the task.

    Attributes:
        arrows: number of arrows, including the target.
        letters: letters besides the Y.
        cell: side of a cell in pixels, at least 8.
        distance: place of the target, `adjacent`: the next cell; `ray`: any cell on the ray, where it is the only
            arrow.
        ink: grey level of glyphs, 0 to 255.
        paper: grey level of the background, 0 to 255.
        bold: widen strokes by a pixel.
        noise: standard deviation of Gaussian noise on each pixel, in grey levels.
    """

    name: ClassVar[str] = "arrow"
    classes: ClassVar[tuple[str, ...]] = DIRECTIONS
    in_channels: ClassVar[int] = 1
    axes: ClassVar[int] = 2
    fixed_scale: ClassVar[str] = "cells are one patch each"
    head: ClassVar[str] = "class"
    symmetries: ClassVar[tuple[str, ...]] = ()

    arrows: int = 8
    letters: str = "ABCDE"
    cell: int = 12
    distance: Distance = "adjacent"
    ink: int = 255
    paper: int = 0
    bold: bool = False
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        if self.distance not in get_args(Distance):
            raise ValueError(f"distance must be one of {', '.join(get_args(Distance))}, not {self.distance!r}.")
        unknown = set(self.letters) - (set(GLYPHS) - {"arrow", "Y"})
        if unknown:
            raise ValueError(f"letters can be of A, B, C, D, E; not {', '.join(sorted(unknown))}.")
        check_range(self, "arrows", least=1)
        check_range(self, "cell", least=8)
        check_range(self, "ink", "paper", least=0, most=255)
        check_range(self, "noise", least=0)
        if self.ink == self.paper:
            raise ValueError(f"ink and paper must be different grey levels, not {self.ink} both.")
        self._glyphs = {name: self._glyph(rows) for name, rows in GLYPHS.items()}

    def cells(self, pixels: int) -> int:
        """Return the number of cells along a side of an image, which needs 1.5 times as many cells as glyphs."""
        cells, least = pixels // self.cell, math.ceil(math.sqrt(1.5 * (self.arrows + len(self.letters) + 1)))
        if pixels % self.cell or cells < least:
            raise ValueError(
                f"arrow task: a resolution must be a multiple of the cell ({self.cell} pixels) with at least {least} "
                f"cells a side, that is {least * self.cell} pixels or more, not {pixels}."
            )
        return cells

    def check_size(self, pixels: int) -> None:
        """Raise a ValueError for a side in pixels that is no multiple of a cell, or is too small."""
        self.cells(pixels)

    def example(self, pixels: int, seed: int) -> tuple[Tensor, int]:
        """Return an image, uint8 [1, pixels, pixels], and its class."""
        image, label = self.draw(self.cells(pixels), seed)
        return torch.from_numpy(image)[None], label

    def draw(self, cells: int, seed: int) -> tuple[np.ndarray, int]:
        """Return an image, uint8 [pixels, pixels], and its class; both depend on (task, cells, seed) only."""
        rng = np.random.default_rng(seed)
        placed = self.place(cells, rng)
        image = self.paint(placed, cells)
        if self.noise:
            image = np.clip(np.rint(image + rng.normal(0, self.noise, image.shape)), 0, 255).astype(np.uint8)
        return image, placed[0][2]

    def place(self, cells: int, rng: np.random.Generator) -> list[Placed]:
        """Return glyphs at random cells: the target arrow, the Y, the other arrows, and the letters."""
        while True:  # a Y at the edge may leave no cell for its arrow
            y, side = rng.integers(cells, size=2), int(rng.integers(4))
            base = (side + 2) % 4  # an upright Y stands on a base below it
            reach = self._cells_ahead(y, base, cells)
            if reach:
                break
        ahead = int(rng.integers(1, reach + 1)) if self.distance == "ray" else 1
        target = y + ahead * STEPS[base]
        ray = {tuple(y + step * STEPS[base]) for step in range(1, reach + 1)}
        taken = {tuple(y), tuple(target)}
        free = [cell for cell in itertools.product(range(cells), repeat=2) if cell not in taken]
        # Arrows take the first allowed cells in random order; only letters are allowed on the ray.
        order = [free[i] for i in rng.permutation(len(free))]
        allowed = (cell for cell in order if self.distance == "adjacent" or cell not in ray)
        others = list(itertools.islice(allowed, self.arrows - 1))
        rest = (cell for cell in order if cell not in set(others))
        turns = rng.integers(4, size=self.arrows)
        placed: list[Placed] = [(tuple(target), "arrow", int(turns[0])), (tuple(y), "Y", side)]
        placed += [(cell, "arrow", int(turn)) for cell, turn in zip(others, turns[1:], strict=True)]
        placed += [(cell, letter, 0) for cell, letter in zip(rest, self.letters, strict=False)]
        return placed

    def paint(self, placed: Sequence[Placed], cells: int) -> np.ndarray:
        """Return the image of glyphs, uint8 [pixels, pixels]."""
        image = np.full((cells * self.cell, cells * self.cell), self.paper, np.uint8)
        for (row, column), name, turn in placed:
            top, left = row * self.cell, column * self.cell
            image[top : top + self.cell, left : left + self.cell] = np.rot90(self._glyphs[name], turn)
        return image

    def _glyph(self, rows: str) -> np.ndarray:
        """Return the image of a glyph in its cell, uint8 [cell, cell]."""
        margin = (self.cell - 8) // 2
        mask = np.pad([[c == "#" for c in row] for row in rows.split()], ((margin, self.cell - 8 - margin),) * 2)
        if self.bold:
            mask[:, 1:] |= mask[:, :-1].copy()
        return np.where(mask, self.ink, self.paper).astype(np.uint8)

    def _cells_ahead(self, y: np.ndarray, base: int, cells: int) -> int:
        step = STEPS[base]
        axis = int(np.abs(step).argmax())
        return int(cells - 1 - y[axis] if step[axis] > 0 else y[axis])

    def majority_accuracy(self) -> float:
        """Return the exact accuracy of always answering the most frequent direction, E[largest count] / arrows."""
        total = 0.0
        for counts in itertools.product(range(self.arrows + 1), repeat=4):
            if sum(counts) == self.arrows:
                ways = math.factorial(self.arrows) / math.prod(map(math.factorial, counts))
                total += ways * max(counts)
        return total / 4**self.arrows / self.arrows
