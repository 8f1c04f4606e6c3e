"""Dashed contours that do not touch, grown dash by dash on a canvas.

A Python integer holds a bit for each pixel. One AND of the dash's bits and the occupied ones tells whether a dash has
room. Dashes come from a table of stamps, by direction and by quarter of a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

DIRECTIONS, QUARTERS = 36, 4  # stamps every 5 degrees, and at four positions in a pixel along each axis
TURNS = DIRECTIONS / math.pi  # factor from an angle in radians to the index of a direction
GOLDEN = (math.sqrt(5) - 1) / 2
ATTEMPTS = 6  # number of directions tried for a dash
PATIENCE = 3  # number of dashes tried for each dash of a contour
BACK = 1  # dashes removed where no direction has room, doubled each time that this does not help

Point = tuple[float, float]  # row and column in pixels; the centre of the first pixel is (0.5, 0.5)
Random = Callable[[], float]  # uniform in [0, 1)


@dataclass(frozen=True)
class Style:
    """Style of contours; lengths are in pixels.

    Attributes:
        dash: length of a dash, between the centres of its round ends.
        gap: distance between consecutive dashes of a contour.
        thickness: thickness of a dash.
        margin: least distance between contours.
        turn: largest angle in degrees between consecutive dashes.
        dot: radius of the dots at the ends of a contour.
        brightness: grey level of dashes, 0 to 255; dots have 255.
    """

    dash: float
    gap: float
    thickness: float
    margin: float
    turn: float
    dot: float
    brightness: int

    @property
    def edge(self) -> float:
        """The least distance of the ends of dashes from the border of the image."""
        return max(self.dot, self.thickness / 2) + 0.5

    @property
    def lag(self) -> int:
        """The number of preceding dashes that a dash may be close to, as its neighbours along the contour."""
        return 1 + math.ceil((self.margin + self.thickness / 2 + max(self.dot, 0.75)) / (self.dash + self.gap))


class Stamp(NamedTuple):
    """A dash or a dot in a small window.

    Attributes:
        core: bits of its pixels.
        wide: bits of its pixels and of the margin around them.
        pixels: antialiased image, uint8 [P, P].
    """

    core: int
    wide: int
    pixels: np.ndarray


@dataclass
class Contour:
    """A contour on a canvas.

    Attributes:
        dashes: both ends of each dash along the contour, [n, 2, 2]: dash, end, (row, column).
        stamps: stamp of each dash, with the index of its window's first bit.
        taken: bits of the contour and of the margin around it.
    """

    dashes: list[tuple[Point, Point]]
    stamps: list[tuple[Stamp, int]] = field(repr=False)
    taken: int = field(repr=False)  # too many digits to print

    @property
    def ends(self) -> tuple[Point, Point]:
        """The two ends of the contour."""
        return self.dashes[0][0], self.dashes[-1][1]


class Stamps:
    """All stamps for one style and one size of canvas.

    A window of P pixels has the centre of its dash in pixel P // 2. Canvases have a border of P // 2 pixels, so that
    windows stay inside.

    Args:
        style: style of the contours.
        pixels: side of the image in pixels.
    """

    def __init__(self, style: Style, pixels: int):
        reach = max(style.dash / 2 + style.thickness / 2, style.dot) + style.margin + 0.5
        self.half = math.ceil(reach) + 1
        self.window, self.width = 2 * self.half + 1, pixels + 2 * self.half
        self.inside = np.arange(self.window)[:, None] * self.width + np.arange(self.window)  # bits of a window
        core = max(style.thickness / 2, 0.75)  # a thin line has pixels too
        angles = np.arange(DIRECTIONS) * math.pi / DIRECTIONS
        steps = np.stack([np.sin(angles), np.cos(angles)], -1) * style.dash / 2  # [directions, 2]
        self.dashes = [self._row(step, style.thickness / 2, core, style.margin, style.brightness) for step in steps]
        self.dots = self._row(np.zeros(2), style.dot, max(style.dot, core), style.margin, 255)

    def _row(self, step: np.ndarray, radius: float, core: float, margin: float, brightness: int) -> list[Stamp]:
        """Return the stamps of a segment from centre - step to centre + step, for each quarter of a pixel."""
        result = []
        centres = np.stack(np.meshgrid(*[np.arange(self.window) + 0.5] * 2, indexing="ij"), -1)  # [P, P, 2]
        for quarter in np.ndindex(QUARTERS, QUARTERS):
            away = centres - (self.half + np.array(quarter) / QUARTERS)
            along = np.clip(away @ step / max(step @ step, 1e-9), -1, 1)[..., None]
            distance = np.linalg.norm(away - along * step, axis=-1)
            shade = np.clip(radius + 0.5 - distance, 0, 1) * brightness
            bits = [self._bits(distance <= limit) for limit in (core, core + margin)]
            result.append(Stamp(bits[0], bits[1], shade.round().astype(np.uint8)))
        return result

    def _bits(self, window: np.ndarray) -> int:
        rows = np.zeros((self.window, self.width), np.uint8)
        rows[:, : self.window] = window
        return int.from_bytes(np.packbits(rows, bitorder="little").tobytes(), "little")

    def find(self, stamps: list[Stamp], row: float, column: float) -> tuple[Stamp, int]:
        """Return the stamp whose centre is nearest to a point, with the index of its window's first bit."""
        y, x = int(row * QUARTERS + 0.5), int(column * QUARTERS + 0.5)
        return stamps[y % QUARTERS * QUARTERS + x % QUARTERS], y // QUARTERS * self.width + x // QUARTERS

    def bit(self, row: float, column: float) -> int:
        """Return the index of the bit for the pixel at a point."""
        return (int(row) + self.half) * self.width + int(column) + self.half


@lru_cache(maxsize=8)
def stamps_of(style: Style, pixels: int) -> Stamps:
    """Return the stamps of a style, computed once."""
    return Stamps(style, pixels)


class Canvas:
    """Contours that keep a least distance from each other, and their image.

    Args:
        style: style of the contours.
        pixels: side of the image in pixels.
    """

    def __init__(self, style: Style, pixels: int):
        self.style, self.pixels, self.stamps = style, pixels, stamps_of(style, pixels)
        self.taken = 0

    def add(self, contour: Contour) -> None:
        """Add a contour, and mark its pixels as occupied."""
        self.taken |= contour.taken

    def grow(self, count: int, dots: bool, random: Random) -> Contour | None:
        """Return a random contour that has room on the canvas; None where this attempt found none.

        Args:
            count: number of dashes.
            dots: whether to leave room for a dot at both ends.
            random: function that returns uniform random numbers in [0, 1).
        """
        style, stamps, lag = self.style, self.stamps, self.style.lag
        low, high = style.edge, self.pixels - style.edge
        point, angle = (low + random() * (high - low), low + random() * (high - low)), 0.0
        if self.taken >> stamps.bit(*point) & 1:
            return None
        first = self._dot(point) if dots else 0
        if first is None:
            return None
        own = [first]  # bits of the first n dashes
        path, placed = list[tuple[Point, Point, float]](), list[tuple[Stamp, int]]()
        sin, cos, dash, half_dash = math.sin, math.cos, style.dash, style.dash / 2
        most = math.radians(style.turn)
        longest, back = 0, BACK
        for _ in range(PATIENCE * count):
            taken = self.taken | own[len(path) - lag] if len(path) >= lag else self.taken
            skip, spread = (style.gap, most) if path else (0.0, math.pi)
            share = random()
            for _ in range(ATTEMPTS):
                share = (share + GOLDEN) % 1  # a random direction, then others evenly spread
                heading = angle + spread * (2 * share - 1)
                down, right = sin(heading), cos(heading)
                y, x = point[0] + (skip + dash) * down, point[1] + (skip + dash) * right
                if low <= y <= high and low <= x <= high:
                    middle = (y - half_dash * down, x - half_dash * right)
                    stamp, offset = stamps.find(stamps.dashes[round(heading * TURNS) % DIRECTIONS], *middle)
                    if not stamp.core << offset & taken:
                        break
            else:
                back = 2 * back if len(path) <= longest else BACK
                longest = max(longest, len(path))
                if len(path) <= back:
                    return None
                del path[-back:], placed[-back:], own[-back:]
                _, point, angle = path[-1]
                continue
            path.append(((point[0] + skip * down, point[1] + skip * right), (y, x), heading))
            placed.append((stamp, offset))
            own.append(own[-1] | stamp.wide << offset)
            point, angle = (y, x), heading
            if len(path) == count:
                last = self._dot(point, own[max(0, count - lag)]) if dots else 0
                return None if last is None else Contour([(a, b) for a, b, _ in path], placed, own[-1] | last)
        return None

    def _dot(self, point: Point, own: int = 0) -> int | None:
        """Return the bits of a dot; None where it has no room."""
        stamp, offset = self.stamps.find(self.stamps.dots, *point)
        return None if stamp.core << offset & (self.taken | own) else stamp.wide << offset

    def draw(self, contours: list[Contour], dots: list[Point]) -> np.ndarray:
        """Return the image of contours and dots, uint8 [pixels, pixels]."""
        stamps, half = self.stamps, self.stamps.half
        placed = [each for contour in contours for each in contour.stamps]
        placed += [stamps.find(stamps.dots, *dot) for dot in dots]
        where = np.array([offset for _, offset in placed])[:, None, None] + stamps.inside  # [stamps, P, P]
        image = np.zeros(stamps.width**2, np.uint8)
        np.maximum.at(image, where, np.stack([stamp.pixels for stamp, _ in placed]))
        return np.ascontiguousarray(image.reshape(stamps.width, stamps.width)[half:-half, half:-half])
