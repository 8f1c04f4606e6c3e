"""Types of command-line arguments, whose errors say what was expected."""

from __future__ import annotations

import argparse


def pixels(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"a resolution is a number of pixels, like 168, not {text!r} (evaluations take squares; the sizes of the "
            f"training are those of python -m train test)"
        )
    return int(text)


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
