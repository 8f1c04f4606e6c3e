"""Import modules of the user, which add names to the registries (ENCODINGS, FEATURE_MAPS, SOURCES, ...)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from performer_string.utils.registry import IMPORTED_FIRST


def import_modules(names: str | Iterable[str]) -> None:
    """Import modules of the user.

    Args:
        names: name of a module, or several, in the working directory or on Python's path.

    Raises:
        ValueError: a name without a module.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:  # as for a script in this folder
        sys.path.insert(0, os.getcwd())
    for name in [names] if isinstance(names, str) else names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # a module imported by this one is missing
            raise ValueError(
                f"imports: there is no module {name!r} in {os.getcwd()}, nor is one installed. It is given as Python "
                f"imports it: mine for mine.py."
            ) from error


@contextmanager
def naming_imports() -> Iterator[None]:
    """Add a hint on `--imports` to the error for an unknown name, which a user's module may define."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("unknown "):
            raise
        message = str(error).removesuffix(f" {IMPORTED_FIRST}.")  # the library's hint for Python
        raise ValueError(f"{message} {IMPORTED_FIRST}: --imports MODULE.") from None
