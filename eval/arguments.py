"""Types of command-line arguments, whose errors say what was expected."""

from __future__ import annotations

import argparse

from train.data.sizes import Size


def pixels(text: str) -> Size:
    try:
        return Size.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of images is 0 or more, not {text!r}.")
    return int(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a number of 1 or more is needed here, not {text!r}")
    return int(text)


class Once(argparse.Action):
    """A list whose repetitions are left out: they would pass for other measurements."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        setattr(namespace, self.dest, list(dict.fromkeys(values)))
