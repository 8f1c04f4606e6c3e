"""Pathfinder: two dots, dashed contours and distractors; are the dots joined by one contour?

Our generator follows the published description of the task (Linsley et al., arXiv:1805.08315). Its sizes are those of
the hard set of Long Range Arena (arXiv:2011.04006): contours of 14 dashes and 4 distractors at 32 x 32 pixels. Images
are not those of the reference generator. `python -m train.data.draw pathfinder` draws a contact sheet.

The label cannot be guessed from parts of an image. Two long contours are drawn before the label is. Then both dots go
to the ends of one contour (joined), or to one end of each (apart). The distance between the dots is the same in both
cases up to a sixteenth of the image. Layouts in which it cannot be are drawn again.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from performer_string.utils.validation import check_types
from train.data.contours import Canvas, Contour, Point, Random, Style

CROWDED = 0.75  # share of an image that contours and their margins may take; little above it they find no room
DRAWS = 400  # layouts that are begun before an image counts as too crowded
TOLERANCE = 1 / 16  # of the image, between the distances of the dots in both classes


@dataclass
class Drawing:
    """An image and how it was made.

    Attributes:
        image: uint8 [pixels, pixels].
        label: 1 if the dots are joined, else 0.
        contours: the two long ones, then the distractors.
        dots: their centres.
    """

    image: np.ndarray
    label: int
    contours: list[Contour]
    dots: tuple[Point, Point]


@dataclass
class PathfinderTask:
    """A version of the task. Lengths are in pixels at every size of the image.

    Attributes:
        dashes: of each of the two long contours, at `base` pixels.
        distractors: shorter contours, at `base` pixels.
        distractor_dashes: of each distractor, at `base` pixels.
        base: size that the three numbers above are meant for. An image of s times the size has contours of s times
            the dashes, and s times the distractors. 0: the numbers hold at every size.
        dash: length of a dash.
        gap: between dashes of a contour.
        thickness: of a dash.
        margin: free pixels at least between contours.
        turn: largest angle in degrees between a dash and the next.
        dot: radius of the two dots.
        brightness: of dashes, 1 to 255; dots have 255.
    """

    name: ClassVar[str] = "pathfinder"
    classes: ClassVar[tuple[str, ...]] = ("apart", "joined")
    in_channels: ClassVar[int] = 1
    axes: ClassVar[int] = 2
    fixed_scale: ClassVar[str] = ""
    head: ClassVar[str] = "class"
    symmetries: ClassVar[tuple[str, ...]] = ("flip", "rotate-90")

    dashes: int = 14
    distractors: int = 4
    distractor_dashes: int = 4
    base: int = 32
    dash: float = 1.0
    gap: float = 1.5
    thickness: float = 0.75
    margin: float = 1.25
    turn: float = 45.0
    dot: float = 1.5
    brightness: int = 200

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("dash", "thickness", "dot"):
            if not getattr(self, name) > 0:
                raise ValueError(f"pathfinder: {name} has to be positive, not {getattr(self, name)}.")
        for name in ("distractors", "base", "gap", "margin"):
            if getattr(self, name) < 0:
                raise ValueError(f"pathfinder: {name} has to be 0 or more, not {getattr(self, name)}.")
        if self.dashes < 2 or self.distractor_dashes < 1:
            raise ValueError(
                f"pathfinder: contours need 2 dashes and distractors 1, not dashes={self.dashes}, "
                f"distractor_dashes={self.distractor_dashes}."
            )
        if not 0 < self.turn <= 90 or not 1 <= self.brightness <= 255:
            raise ValueError(
                f"pathfinder: turn has to lie between 0 and 90 degrees and brightness between 1 and 255, not "
                f"{self.turn} and {self.brightness}."
            )
        self._style = Style(self.dash, self.gap, self.thickness, self.margin, self.turn, self.dot, self.brightness)

    def counts(self, pixels: int) -> tuple[int, int, int]:
        """Return dashes of a contour, distractors, and dashes of a distractor, for a size of the image."""
        scale = pixels / self.base if self.base else 1.0
        return (
            max(2, round(self.dashes * scale)),
            round(self.distractors * scale),
            max(1, round(self.distractor_dashes * scale)),
        )

    def check_size(self, pixels: int) -> None:
        """Raise a ValueError where the contours have no room in an image of so many pixels a side."""
        dashes, distractors, short = self.counts(pixels)
        room = max(pixels - 2 * self._style.edge, 0.0) ** 2
        wanted = (2 * dashes + distractors * short) * (self.dash + self.gap) * (self.thickness + self.margin)
        if wanted > CROWDED * room:
            raise ValueError(
                f"pathfinder: two contours of {dashes} dashes and {distractors} distractors of {short} have no room in "
                f"{pixels} x {pixels} pixels: they would take {wanted / max(room, 1):.0%} of it, and "
                f"{CROWDED:.0%} is the most. Take larger images, fewer or shorter dashes, or a smaller margin."
            )

    def draw(self, pixels: int, seed: int) -> Drawing:
        """Return an image and how it was made: a function of (task, pixels, seed) alone.

        Raises:
            ValueError: contours that find no room.
        """
        uniform = random.Random(seed).random
        dashes, distractors, short = self.counts(pixels)
        for _ in range(DRAWS):
            canvas = Canvas(self._style, pixels)
            contours = self._grow(canvas, 2, dashes, True, uniform)
            pairs = self._matched(contours, pixels) if len(contours) == 2 else []
            if not pairs:
                continue
            contours += self._grow(canvas, distractors, short, False, uniform)
            if len(contours) < 2 + distractors:
                continue
            pair, label = pairs[int(uniform() * len(pairs))], int(uniform() < 0.5)
            return Drawing(canvas.draw(contours, list(pair[label])), label, contours, pair[label])
        raise ValueError(
            f"pathfinder: contours found no room in {pixels} x {pixels} pixels in {DRAWS} attempts. Take larger "
            f"images, fewer or shorter dashes, or a smaller margin."
        )

    def _grow(self, canvas: Canvas, count: int, dashes: int, dots: bool, uniform: Random) -> list[Contour]:
        """Return so many contours, or fewer where there is no room for more."""
        found = list[Contour]()
        for _ in range(20 * count):
            if len(found) == count:
                break
            contour = canvas.grow(dashes, dots, uniform)
            if contour is not None:
                canvas.add(contour)
                found.append(contour)
        return found

    def _matched(self, contours: list[Contour], pixels: int) -> list[tuple[tuple[Point, Point], tuple[Point, Point]]]:
        """Return pairs of places for the dots, apart and joined, in which the dots are about as far from each other."""
        (a, b), (c, d) = contours[0].ends, contours[1].ends
        least, tolerance = 2 * self.dot + 1, TOLERANCE * pixels
        far = {pair: math.dist(*pair) for pair in [(a, b), (c, d), *itertools.product((a, b), (c, d))]}
        return [
            (apart, joined)
            for apart, joined in itertools.product(itertools.product((a, b), (c, d)), [(a, b), (c, d)])
            if min(far[apart], far[joined]) > least and abs(far[apart] - far[joined]) <= tolerance
        ]

    def example(self, pixels: int, seed: int) -> tuple[Tensor, int]:
        """Return an image, uint8 [1, pixels, pixels], and its class."""
        drawing = self.draw(pixels, seed)
        return torch.from_numpy(drawing.image)[None], drawing.label

    def majority_accuracy(self) -> float:
        """Return 1/2: the label is drawn as a fair coin."""
        return 0.5
