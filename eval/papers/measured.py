"""What a cell of a table shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """What a cell shows.

    Attributes:
        value: a number; None where there is only text.
        low, high: the ends of its 95 % interval.
        text: in place of the number.
        images, seeds: that it is of.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    images: int = 0
    seeds: int = 0
