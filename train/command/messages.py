"""What the command lines of training and of evaluation share: errors in one line, and modules of the user."""

from __future__ import annotations

import errno
import importlib
import os
import re
import shlex
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from performer_string.utils.registry import IMPORTED_FIRST
from train.command.output import lasting_output

PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
RAISED = re.compile(r"^[\w.]+Error: ", re.MULTILINE)  # where a traceback ends and a message begins
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG}


def program_name(module: str, is_script: bool = False) -> str:
    """Return how this process was called, for messages and commands to repeat.

    Args:
        module: of `python -m`, such as `train`.
        is_script: the command line is that of a user's script.
    """
    if is_script:
        return f"python {shlex.quote(sys.argv[0])}"
    return f"performer-string {module}" if Path(sys.argv[0]).stem == "performer-string" else f"python -m {module}"


def typed_command(program: str, arguments: Sequence[str] | None) -> str:
    """Return the command as it was typed, or of arguments that Python code gives as one would type it.

    Args:
        program: as of `program_name`.
        arguments: of a call; None for those of this process.
    """
    return f"{program} {shlex.join(sys.argv[1:] if arguments is None else arguments)}"


def user_message(error: Exception) -> str | None:
    """Return what to say of a wrong value, path or disk, which a user can fix; None of any other error."""
    if not isinstance(error, (ValueError, *PATH_ERRORS)) and getattr(error, "errno", None) not in DISK_ERRORS:
        return None
    message = str(error).strip()
    if "in DataLoader worker process" not in message:
        return message
    return re.split(RAISED, message)[-1]  # a process that loads images puts its traceback before it


# Of torch, and of Python's multiprocessing, where a process that loads images ended or shared memory is short.
LOST_WORKER = ("DataLoader worker (pid", "unable to open shared memory", "received 0 items of ancdata", "/dev/shm")


def machine_message(error: Exception) -> str | None:
    """Return what to say where the machine ended a process that loads images, or allows no more files; else None."""
    message, number = str(error).strip(), getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in message:
        return (
            f"too many open files ({message.splitlines()[0]}): raise their number by `ulimit -n 4096` in this shell, "
            f"or take fewer processes that load images (--data.workers, --workers)."
        )
    lost = isinstance(error, RuntimeError) and any(sign in message for sign in LOST_WORKER)
    if lost or (isinstance(error, EOFError | ConnectionError) and from_multiprocessing(error)):
        return (
            "a process that loads images was lost: it was killed, most often as memory or /dev/shm ran out. Take fewer "
            "of them or smaller batches (--data.workers, --data.batch_size), or `docker run --shm-size 8g`. A training "
            f"goes on from its last checkpoint by `resume`. ({message.splitlines()[0] if message else 'end of file'})"
        )
    return None


def from_multiprocessing(error: Exception) -> bool:
    """Return whether an error comes from a connection to a process that loads images."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(Path(file).parent.name == "multiprocessing" for file in files)


@contextmanager
def naming_imports() -> Iterator[None]:
    """Add to the error for an unknown name that a name of the user's module needs `--imports`."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("unknown "):
            raise
        message = str(error).removesuffix(f" {IMPORTED_FIRST}.")  # as the library says without a command line
        raise ValueError(f"{message} {IMPORTED_FIRST}: --imports MODULE.") from None


def printable(text: str) -> str:
    """Return text, as the name of a file, in one line: control characters and bytes that are no UTF-8 are escaped."""
    valid = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) == "Cc" else c for c in valid)


@contextmanager
def one_message(explain: Callable[[Exception], str | None] = user_message) -> Iterator[None]:
    """Write an error that `explain` has words for to stderr, in these words, and exit with status 2.

    Output is that of `lasting_output`.
    """
    with lasting_output():
        try:
            yield
        except Exception as error:
            message = machine_message(error) or explain(error)
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
