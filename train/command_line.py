"""What the command lines of training and of evaluation share: errors in one line, and modules of the user."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG}


def user_message(error: Exception) -> str | None:
    """Return what to say of a wrong value, path or disk, which a user can fix; None of any other error."""
    if not isinstance(error, (ValueError, *PATH_ERRORS)) and getattr(error, "errno", None) not in DISK_ERRORS:
        return None
    message = str(error)  # a process that loads images adds its traceback
    return message.strip().rpartition("Error: ")[2] if "in DataLoader worker process" in message else message


@contextmanager
def one_message(explain: Callable[[Exception], str | None] = user_message) -> Iterator[None]:
    """Write an error that `explain` has words for to stderr, in these words, and exit with status 2."""
    try:
        yield
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        raise SystemExit(2) from None


def import_modules(names: str | Iterable[str]) -> None:
    """Import modules of the user, which add names to the registries (ENCODINGS, FEATURE_MAPS, SOURCES, ...).

    Args:
        names: one or several, from the working directory or wherever Python finds them.

    Raises:
        ValueError: a name that is no module.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:  # as a script in this folder has it
        sys.path.insert(0, os.getcwd())
    for name in [names] if isinstance(names, str) else names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # of a module that this one imports
            raise ValueError(
                f"imports: there is no module {name!r} in {os.getcwd()}, nor is one installed. It is given as Python "
                f"imports it: mine for mine.py."
            ) from error
