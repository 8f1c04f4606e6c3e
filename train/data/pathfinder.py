"""Pathfinder: two dots, dashed contours and distractors; are the dots joined by one contour?

The generator follows the published description of the task (Linsley et al., arXiv:1805.08315). Its sizes are those of
the hard set of Long Range Arena (arXiv:2011.04006): contours of 14 dashes and 4 distractors at 32 x 32 pixels. Images
differ from those of the reference generator. `python -m train.data.draw pathfinder` draws a contact sheet.

The label cannot be guessed from parts of an image. Two long contours are drawn before the label. Then both dots are
placed at the ends of one contour (joined), or at one end of each (apart). The distances between the dots in both cases
differ by at most a sixteenth of the image; other layouts are rejected.
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
from train.utils.ranges import check_range

CROWDED = 0.75  # largest share of an image for contours and margins; little above it they find no room
DRAWS = 400  # number of layouts tried before an image counts as too crowded
TOLERANCE = 1 / 16  # largest difference of the dots' distance between classes, as a share of the image


@dataclass
class Drawing:
    """An image and its ground truth.

    Attributes:
        image: image, uint8 [pixels, pixels].
        label: 1 if the dots are joined, else 0.
        contours: the two long contours, then the distractors.
        dots: centres of the two dots.
    """

    image: np.ndarray
    label: int
    contours: list[Contour]
    dots: tuple[Point, Point]


@dataclass
class PathfinderTask:
    """Options of the task. Lengths are in pixels at every size of the image.

    Attributes:
        dashes: number of dashes in each of the two long contours, at `base` pixels.
        distractors: number of shorter contours, at `base` pixels.
        distractor_dashes: number of dashes in each distractor, at `base` pixels.
        base: side of the image in pixels for the three numbers above. An image of s times the side has s times the
            dashes in contours, and s times the distractors. With 0 the numbers hold at every size.
        dash: length of a dash.
        gap: distance between consecutive dashes of a contour.
        thickness: thickness of a dash.
        margin: least distance between contours.
        turn: largest angle in degrees between consecutive dashes.
        dot: radius of the two dots.
        brightness: grey level of dashes, 1 to 255; dots have 255.
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
        of = f"{self.name}: "
        check_range(self, "dash", "thickness", "dot", above=0, prefix=of)
        check_range(self, "distractors", "base", "gap", "margin", least=0, prefix=of)
        check_range(self, "dashes", least=2, prefix=of)
        check_range(self, "distractor_dashes", least=1, prefix=of)
        check_range(self, "turn", above=0, most=90, prefix=of)
        check_range(self, "brightness", least=1, most=255, prefix=of)
        self._style = Style(self.dash, self.gap, self.thickness, self.margin, self.turn, self.dot, self.brightness)

    def counts(self, pixels: int) -> tuple[int, int, int]:
        """Return the numbers of dashes, distractors and distractor dashes for a side of the image in pixels."""
        scale = pixels / self.base if self.base else 1.0
        return (
            max(2, round(self.dashes * scale)),
            round(self.distractors * scale),
            max(1, round(self.distractor_dashes * scale)),
        )

    def check_size(self, pixels: int) -> None:
        """Raise a ValueError for a side in pixels that has no room for the contours."""
        dashes, distractors, short = self.counts(pixels)
        room = max(pixels - 2 * self._style.edge, 0.0) ** 2
        wanted = (2 * dashes + distractors * short) * (self.dash + self.gap) * (self.thickness + self.margin)
        if wanted > CROWDED * room:
            raise ValueError(
                f"{self.name}: two contours of {dashes} dashes and {distractors} distractors of {short} have no room "
                f"in {pixels} x {pixels} pixels: they would take {wanted / max(room, 1):.0%} of it, and "
                f"{CROWDED:.0%} is the most. Take larger images, fewer or shorter dashes, or a smaller margin."
            )

    def draw(self, pixels: int, seed: int) -> Drawing:
        """Return an image with its ground truth, which depends only on (task, pixels, seed).

        Raises:
            ValueError: no room for the contours.
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
            f"{self.name}: contours found no room in {pixels} x {pixels} pixels in {DRAWS} attempts. Take larger "
            f"images, fewer or shorter dashes, or a smaller margin."
        )

    def _grow(self, canvas: Canvas, count: int, dashes: int, dots: bool, uniform: Random) -> list[Contour]:
        """Return `count` contours, or fewer where there is no room."""
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
        """Return pairs of positions of the dots, apart and joined, with about the same distance between the dots."""
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
        """Return 1/2, since both labels have equal probability."""
        return 0.5
