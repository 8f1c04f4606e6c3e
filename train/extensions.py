"""Modules of one's own, which add names to the tables (ENCODINGS, FEATURE_MAPS, SOURCES, ...) when imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable


def import_modules(names: str | Iterable[str]) -> None:
    """Imports one or each of several, from the working directory or wherever Python finds it.

    Raises:
        ValueError: a name that is no module.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:  # as a script of its own has it
        sys.path.insert(0, os.getcwd())
    for name in [names] if isinstance(names, str) else names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0] and error.name != name:
                raise  # of a module that this one imports
            raise ValueError(
                f"imports: there is no module {name!r} in {os.getcwd()}, nor is one installed. It is given as Python "
                f"imports it: mine for mine.py."
            ) from error
