"""Sizes of images in pixels, and their names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Size(NamedTuple):
    """Height and width of images in pixels: `168` where they are equal, else `96x128`."""

    height: int
    width: int

    @classmethod
    def of(cls, value: int | str | Sequence[int]) -> Size:
        """Return the size of 168, "168", "96x128" (height x width) or [96, 128].

        Raises:
            ValueError: anything else, or a side of 0.
        """
        if not isinstance(value, str):
            pair = tuple(value) if isinstance(value, Iterable) else (value, value)
            if len(pair) != 2 or min(pair) < 1:
                raise ValueError(f"a size is a positive number or two (height, width), not {value}.")
            return cls(*pair)
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)?", value):
            raise ValueError(f"a size is a number of pixels, like 168, or height x width, like 96x128, not {value!r}.")
        height, _, width = value.partition("x")
        return cls(int(height), int(width or height))

    def __str__(self) -> str:
        return str(self.height) if self.height == self.width else f"{self.height}x{self.width}"

    @property
    def side(self) -> float:
        """The side of the square of as many pixels."""
        return math.sqrt(math.prod(self))


def ascending(sizes: Iterable[Size]) -> list[Size]:
    """Return each size once, in the order of their areas."""
    return sorted(set(sizes), key=lambda size: (math.prod(size), size))
