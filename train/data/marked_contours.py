"""Marked contours: which pixels show a contour of Pathfinder that ends in a dot?

The images are those of `pathfinder`, and the answer is what its question hangs on: the contours that start at the dots.
A class for each pixel says at every dash whether a model has followed its contour, where one class for the image says
so once. `python -m train.data.draw marked_contours` draws a contact sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from train.data.contours import Canvas
from train.data.pathfinder import Drawing, PathfinderTask

INK = 0.25  # least share of the brightness of dashes at which a pixel shows one


@dataclass
class MarkedContoursTask(PathfinderTask):
    """Options of the task, those of `PathfinderTask`."""

    name: ClassVar[str] = "marked_contours"
    classes: ClassVar[tuple[str, ...]] = ("background", "other contour", "marked contour")
    fixed_scale: ClassVar[str] = "labels are those of single pixels"
    head: ClassVar[str] = "dense"

    def labels(self, drawing: Drawing) -> Tensor:
        """Return the classes of the pixels of a drawing, int64 [pixels, pixels]."""
        marked = [contour for contour in drawing.contours if set(contour.ends) & set(drawing.dots)]
        alone = Canvas(self._style, len(drawing.image)).draw(marked, list(drawing.dots))
        shown = [torch.from_numpy(image >= INK * self.brightness).long() for image in (drawing.image, alone)]
        return shown[0] + shown[1]

    def example(self, pixels: int, seed: int) -> tuple[Tensor, Any]:
        """Return an image, uint8 [1, pixels, pixels], and the classes of its pixels, int64 [pixels, pixels]."""
        drawing = self.draw(pixels, seed)
        return torch.from_numpy(drawing.image)[None], self.labels(drawing)

    def local_answer(self, labels: Tensor) -> Tensor:
        """Return the answers of a rule that sees no dot: background, and `other contour` for every contour."""
        return labels.clamp(max=1)

    def majority_accuracy(self) -> float:
        """Return the pixel accuracy of `local_answer`, measured on 200 images with the default size."""
        labels = torch.stack([self.example(self.base or 32, seed)[1] for seed in range(200)])
        return float((self.local_answer(labels) == labels).float().mean())
