"""The value in a cell of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """The value in a cell.

    Attributes:
        value: number; None where there is only text.
        low, high: ends of its 95 % interval; None without one.
        text: text shown instead of a number.
        images, seeds: numbers of images and seeds behind the value.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    images: int = 0
    seeds: int = 0
