"""The cells task: which pixels show cells of the same kind as the marked one?

Overlapping cells with textures of several kinds, as under a microscope, and a white dot on one of them. The label of a
pixel is background, other cell, or cell of the marked cell's kind. The kind of a cell is visible locally. The marked
kind is visible only at the dot, which may be far away in a large image. Cells have the same size in pixels at every
size of the image, so a small image looks like a crop of a large one.
`python -m train.data.draw cells` draws a contact sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from performer_string.utils.validation import check_types
from train.data.cell_scene import TEXTURES, Scene, draw_scene
from train.utils.ranges import check_range

SCENES = 100  # number of scenes drawn before an error says that cells are too sparse for a mark


@dataclass
class CellsTask:
    """Options of the task. Lengths are in pixels at every size of the image.

    Attributes:
        kinds: number of kinds of cells: the first ones of grained, striped, nucleated, plain.
        radius: mean radius of a cell.
        crowding: share of the grid points with a cell, in (0, 1].
        noise: standard deviation of the noise of each pixel, where white is 1.
        dot: radius of the mark.
    """

    name: ClassVar[str] = "cells"
    classes: ClassVar[tuple[str, ...]] = ("background", "other cell", "marked kind")
    in_channels: ClassVar[int] = 1
    axes: ClassVar[int] = 2
    fixed_scale: ClassVar[str] = "labels are those of single pixels"
    head: ClassVar[str] = "dense"
    symmetries: ClassVar[tuple[str, ...]] = ()

    kinds: int = 3
    radius: float = 10.0
    crowding: float = 0.8
    noise: float = 0.05
    dot: float = 2.0

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "kinds", least=2, most=len(TEXTURES), prefix="cells: ")
        check_range(self, "radius", least=4, prefix="cells: ")
        check_range(self, "dot", least=1, most=self.radius / 2, prefix="cells: ")
        check_range(self, "crowding", above=0, most=1, prefix="cells: ")
        check_range(self, "noise", least=0, most=0.5, prefix="cells: ")

    def check_size(self, pixels: int) -> None:
        """Raise a ValueError for a side in pixels that has no room for several cells."""
        least = round(5 * self.radius)
        if pixels < least:
            raise ValueError(
                f"cells: images of cells with a radius of {self.radius:g} need {least} pixels a side, not {pixels}."
            )

    def scene(self, pixels: int, rng: np.random.Generator) -> tuple[Scene, np.ndarray]:
        """Return an image without a mark, and the indices of the cells that can be marked.

        Raises:
            ValueError: cells are too sparse for a mark.
        """
        for _ in range(SCENES):
            scene = draw_scene(pixels, self.radius, self.crowding, self.kinds, self.noise, rng)
            cells = scene.markable(self.radius / 2)
            if len(cells):
                return scene, cells
        raise ValueError(
            f"cells: no cell to mark in {pixels} x {pixels} pixels: raise crowding, or take larger images."
        )

    def example(self, pixels: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return an image, uint8 [1, pixels, pixels], and the classes of its pixels, int64 [pixels, pixels].

        The marked kind is sampled before the marked cell, so that a kind with many cells is not marked more often.
        """
        rng = np.random.default_rng(seed)
        scene, cells = self.scene(pixels, rng)
        kinds = scene.kinds[cells]
        there = np.unique(kinds)
        kind = there[rng.integers(len(there))]
        of_kind = cells[kinds == kind]
        marked = int(of_kind[rng.integers(len(of_kind))])
        image = torch.from_numpy(scene.with_mark(marked, self.dot))[None]
        return image, torch.from_numpy(scene.labels(marked))

    def local_answer(self, labels: Tensor) -> Tensor:
        """Return the answers of the best local rule: background, and `other cell` for every cell."""
        return labels.clamp(max=1)

    def majority_accuracy(self) -> float:
        """Return the pixel accuracy of `local_answer`, which only separates background from cells.

        It is measured on 32 images with sides of 16 radii.
        """
        pixels = round(16 * self.radius)
        labels = torch.stack([self.example(pixels, seed)[1] for seed in range(32)])
        return float((self.local_answer(labels) == labels).float().mean())
