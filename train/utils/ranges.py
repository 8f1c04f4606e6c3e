"""Checks of numbers against their ranges: those of a dataclass of options, and those of a command line."""

from __future__ import annotations

import argparse
import operator
from collections.abc import Callable
from typing import Any


def check_range(
    options: Any,
    *names: str,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    prefix: str = "",
) -> None:
    """Check that fields lie in a range; None passes, and NaN does not.

    Args:
        options: dataclass of options.
        names: names of its fields.
        above, least: bound below, without and with the bound itself.
        below, most: bound above, without and with the bound itself.
        prefix: text before the name in the message.

    Raises:
        ValueError: a field out of range.
    """
    bounds = (
        (operator.gt, above, "above {:g}"),
        (operator.ge, least, "{:g} or more"),
        (operator.lt, below, "below {:g}"),
        (operator.le, most, "at most {:g}"),
    )
    given = [(holds, bound, words) for holds, bound, words in bounds if bound is not None]
    for name in names:
        value = getattr(options, name)
        if value is not None and not all(holds(value, bound) for holds, bound, _ in given):
            text = " and ".join(words.format(bound) for _, bound, words in given)
            raise ValueError(f"{prefix}{name} must be {text}, not {value}.")


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of command-line arguments: whole numbers, `least` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a number of {least} or more is needed here, not {text!r}")
        return int(text)

    return parse
