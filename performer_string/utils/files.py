"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, which becomes `path` when the block ends, and goes after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_writable(option: str, folder: Path) -> None:
    """Raise a ValueError where nothing could be written into a folder, which need not be there yet.

    Args:
        option: of the command line that it was given by, for the message.
        folder: the folder.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"{option} {folder}: {existing} is not a folder that can be written to ({error}).") from error
