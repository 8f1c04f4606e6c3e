"""A parser of a command line that suggests the nearest option for an unknown one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from performer_string.utils.registry import nearest


class SuggestingParser(argparse.ArgumentParser):
    """An `ArgumentParser` that ends the program for unknown arguments, with its command's usage and a suggestion.

    The parser of the whole program would show its own usage, without a suggestion.
    """

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options; unknown arguments end the program."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{self.hint(unknown)}")
        return options, unknown

    def hint(self, unknown: Sequence[str]) -> str:
        """Return the nearest known option for the first unknown one as text; empty where none is near."""
        first = next((argument.partition("=")[0] for argument in unknown if argument.startswith("-")), "")
        known = re.findall(r"^ +(?:-\w, )?(--[\w-]+)", self.format_help(), re.MULTILINE)
        hint = nearest(first.strip("-"), [name.strip("-") for name in known])  # all names have dashes
        return hint.replace("'", "'--", 1) if first else ""
