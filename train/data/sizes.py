"""Sizes of images and videos in pixels, and views of videos."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

Parsed = TypeVar("Parsed")


class Size(tuple[int, ...]):
    """Height and width of images in pixels, shown as `168` if equal, else `96x128`; of videos as `8x96x128`.

    Args:
        sides: height and width, or frames, height and width.
    """

    def __new__(cls, *sides: int) -> Size:
        return super().__new__(cls, sides)

    def __getnewargs__(self) -> Any:
        return tuple(self)

    @classmethod
    def of(cls, value: int | str | Sequence[int]) -> Size:
        """Return the size for 168, "168", "96x128" (height x width), [96, 128], or "8x96x128" (frames first).

        Raises:
            ValueError: another form, or a side of 0.
        """
        if not isinstance(value, str):
            sides = tuple(value) if isinstance(value, Iterable) else (value, value)
            if len(sides) not in (2, 3) or min(sides) < 1:
                raise ValueError(
                    f"a size is a positive number or two (height, width), with the frames before them for videos, not "
                    f"{value}."
                )
            return cls(*sides)
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){0,2}", value):
            raise ValueError(
                f"a size is a number of pixels, like 168, frames x height x width, like 8x96x128, or height x width, "
                f"like 96x128, not {value!r}."
            )
        sides = tuple(map(int, value.split("x")))
        return cls(*sides, *sides) if len(sides) == 1 else cls(*sides)

    def __str__(self) -> str:
        square = len(self) == 2 and self[0] == self[1]
        return str(self[0]) if square else "x".join(map(str, self))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def height(self) -> int:
        """Height in pixels."""
        return self[-2]

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self[-1]

    @property
    def side(self) -> float:
        """The side of the square, or cube, with the same number of pixels."""
        return float(math.prod(self) ** (1 / len(self)))


class Views(NamedTuple):
    """Number of views of a video, shown as `5x3`; the mean over them is one answer.

    Attributes:
        segments: number of clips, each with other frames.
        crops: number of crops of each clip, spread along its longer side.
    """

    segments: int = 1
    crops: int = 1

    @classmethod
    def of(cls, text: str) -> Views:
        """Parse `5x3`: segments x crops.

        Raises:
            ValueError: another form.
        """
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
            raise ValueError(f"views are segments x crops of a video, like 5x3, not {text!r}.")
        return cls(*map(int, text.split("x")))

    @property
    def total(self) -> int:
        """The number of views."""
        return self.segments * self.crops

    @property
    def column(self) -> dict[str, str]:
        """The column `views` of results; empty for a single view."""
        return {"views": str(self)} if self.total > 1 else {}

    def __str__(self) -> str:
        return f"{self.segments}x{self.crops}"


ONE = Views()


def ascending(sizes: Iterable[Size]) -> list[Size]:
    """Return the distinct sizes in ascending order of their numbers of pixels."""
    return sorted(set(sizes), key=lambda size: (math.prod(size), size))


def argument(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Return a type of command-line arguments, whose errors have the message of `parse`."""

    def parsed(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


image_size = argument(Size.of)  # 168, 96x128 or 8x96x128
views_of = argument(Views.of)  # 5x3
