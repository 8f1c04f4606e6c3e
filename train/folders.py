"""Folders of runs: made before anything is checked, and as they were again where nothing is trained."""

from __future__ import annotations

import atexit
import contextlib
import os
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_only

from train.files import HISTORY, LOCK


def new_folder() -> Path:
    """runs/TIME, or runs/TIME-1 and so on where runs of the same second have taken that."""
    name = f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    path, number = Path(name), 0
    while not rank_zero_only.rank:  # type: ignore[attr-defined]  # the others write nothing
        try:
            path.mkdir(parents=True)
            leave_no_trace(path, made=True)
            break
        except FileExistsError:
            number += 1
            path = Path(f"{name}-{number}")
    return path


@rank_zero_only
def leave_no_trace(folder: Path, made: bool) -> None:
    """At exit, takes away what a command leaves that was refused before its first step.

    Args:
        folder: where it writes.
        made: the folder is its own.
    """
    there = set(folder.iterdir()) if folder.is_dir() else set()
    atexit.register(restore, folder, history(folder), there, made)


def history(folder: Path) -> int:
    """Length of the file that grows when a training begins."""
    path = folder / HISTORY
    return path.stat().st_size if path.is_file() else 0


def restore(folder: Path, before: int, there: set[Path], made: bool) -> None:
    """Removes the logger's file and the lock of a command that has not begun to train, and its folder if left empty.

    Not those of another process that trains there: the name of the logger's file has the process in it, and a lock that
    is held is not taken.
    """
    with contextlib.suppress(OSError):
        if history(folder) == before:
            for path in set(folder.iterdir()) - there:
                if path.name.startswith("events.out.tfevents") and str(os.getpid()) in path.name.split("."):
                    path.unlink()
                if path.name == LOCK:
                    with contextlib.suppress(Timeout), FileLock(path.resolve(), timeout=0):
                        path.unlink()
            if made:
                folder.rmdir()
