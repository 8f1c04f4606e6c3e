"""Files that are either whole or not there."""

from __future__ import annotations

import difflib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def write_aside(path: Path, *, synchronise: bool = False) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` when the block ends, and is removed after an error.

    Args:
        path: path of the file.
        synchronise: whether to wait until the disk has the file. Otherwise a machine that crashes soon afterwards may
            leave an empty file, and not the former one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not the number of the process, which another machine on the same file system may have as well.
    partial = path.with_name(f"{path.stem}.{secrets.randbelow(10**12)}.part{path.suffix}")
    try:
        yield partial
        if synchronise:
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, whatever the encoding of the machine, without a byte order mark.

    Raises:
        ValueError: a file in another encoding. The message names it.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}): save it in this encoding.") from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        ValueError: a file that is empty, cut off or damaged. The message names it.
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: it is cut off or damaged ({error}). Repair or delete it.") from error


def check_writable(option: str, folder: Path) -> None:
    """Raise a ValueError where nothing could be written into a folder, which need not be there yet.

    Args:
        option: option of the command line that the folder was given by, for the message.
        folder: folder to write into.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"{option} {folder}: {existing} is not a folder that can be written to ({error}).") from error


def nearest_path(path: Path) -> str:
    """Return a hint to a similar name that exists, of the file or of the first folder that is missing."""
    if path.exists():
        return ""
    while path != path.parent and not path.parent.exists():
        path = path.parent
    there = {each.name: each for each in path.parent.iterdir()} if path.parent.is_dir() else {}
    close = difflib.get_close_matches(path.name, sorted(there), n=1)
    return f" Did you mean {there[close[0]]}?" if close else ""
