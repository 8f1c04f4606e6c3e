"""Files that are either whole or not there, and what those of a run are called."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

CHECKPOINTS = "checkpoints"  # a folder
LAST, BEST = "last.ckpt", "best.ckpt"
LOCK = "lock"  # held by the process that trains a run
HELD = "PERFORMER_STRING_LOCK"  # in the environment of a run that a sweep trains: the lock that the sweep holds for it
METRICS = "metrics.json"  # of validation at the end; without it a run is not finished

# Errors of paths that a user can mend.
UNUSABLE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def latest_checkpoint(run: Path) -> Path | None:
    """What a run can be resumed from: `last.ckpt`, or `best.ckpt` of a run killed before its first one; else None."""
    paths = (run / CHECKPOINTS / name for name in (LAST, BEST))
    return next((path for path in paths if path.is_file()), None)


@contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it when the block ends without an error, and removed after one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def new_folder() -> Path:
    """runs/TIME, or runs/TIME-1 and so on where runs of the same second have taken that."""
    name = f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    path, number = Path(name), 0
    while not rank_zero_only.rank:  # type: ignore[attr-defined]  # the others write nothing
        try:
            path.mkdir(parents=True)
            atexit.register(remove_empty, path)  # a command that was refused leaves nothing
            break
        except FileExistsError:
            number += 1
            path = Path(f"{name}-{number}")
    return path


def remove_empty(folder: Path) -> None:
    """Removes the folder of a command that has not begun to train: its logger and lock may have been there before."""
    with contextlib.suppress(OSError):
        left = list(folder.iterdir())
        if all(path.name == LOCK or path.name.startswith("events.out.tfevents") for path in left):
            for path in left:
                path.unlink()
            folder.rmdir()
