"""Import modules of the user, which add names to the registries (ENCODINGS, FEATURE_MAPS, SOURCES, ...)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from performer_string.utils.registry import IMPORTED_FIRST

# Kinds of names that a module may add to a registry.
REGISTERED = ("encoding", "feature map", "locality", "value map", "attention", "data source", "augmentation")


def module_names(imports: str | Iterable[str] | None) -> list[str]:
    """Return the names in a field `imports`, which may also be one name or empty."""
    return [imports] if isinstance(imports, str) else list(imports or [])


def import_modules(names: str | Iterable[str] | None) -> None:
    """Import modules of the user.

    Args:
        names: name of a module, or several, in the working directory or on Python's path.

    Raises:
        ValueError: a name without a module.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:  # as for a script in this folder
        sys.path.insert(0, os.getcwd())
    for name in module_names(names):
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
def naming_imports(how: str = "--imports MODULE") -> Iterator[None]:
    """Add a hint to the error for an unknown name that a user's module may define.

    Args:
        how: how a module is named here.
    """
    try:
        yield
    except ValueError as error:
        unknown = str(error).startswith(tuple(f"unknown {kind} '" for kind in REGISTERED))
        if not unknown or f"{IMPORTED_FIRST}: " in str(error):
            raise
        message = str(error).removesuffix(f" {IMPORTED_FIRST}.")  # the library's hint for Python
        raise ValueError(f"{message} {IMPORTED_FIRST}: {how}.") from None
