"""The folder of a run: what its files are called, and files that are either whole or not there."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

CHECKPOINTS = "checkpoints"  # a folder
CONFIG = "config.yaml"
LAST, BEST = "last.ckpt", "best.ckpt"
LOCK = "lock"  # held by the process that trains a run
LOCK_VARIABLE = "PERFORMER_STRING_LOCK"  # in the environment of a run that a sweep trains: the lock that it holds
HISTORY = "history.jsonl"  # of the processes that have trained a run
METRICS = "metrics.json"  # of validation at the end; without it a run is not finished
COUNTED = "val/images"  # in it, how many images the last validation counted
CURVES = "metrics.csv"  # every metric of a run, a row for each step
SECONDS = "seconds"  # of training, without the pauses between an interruption and the next `resume`
OUT_OF_TIME = 75  # exit status of a training that may be resumed: os.EX_TEMPFAIL, where a system has it
SUMMARY = "summary.csv"  # of the runs of a sweep, beside their folders


def latest_checkpoint(run: Path) -> Path | None:
    """Return what a run can be resumed from: `last.ckpt`, else `best.ckpt` of a run killed early, else None."""
    paths = (run / CHECKPOINTS / name for name in (LAST, BEST))
    return next((path for path in paths if path.is_file()), None)


def run_of(checkpoint: Path) -> Path | None:
    """Return the folder of the run that a checkpoint belongs to; None for a file by itself."""
    return checkpoint.parents[1] if checkpoint.parent.name == CHECKPOINTS else None


def remove_partial(folder: Path) -> None:
    """Remove what processes that were killed in `write_aside` have left in a folder, where none writes now."""
    for path in folder.glob("*.part*"):
        if re.fullmatch(r".+\.\d+\.part(\.\w+)?", path.name):
            path.unlink(missing_ok=True)


def name_run_folder() -> Path:
    """Return runs/TIME, where a run without a name is."""
    return Path(f"runs/{datetime.now():%Y%m%d-%H%M%S}")


def make_run_folder() -> Path:
    """Make runs/TIME, or runs/TIME-1 and so on where runs of the same second have taken that."""
    path = name = name_run_folder()
    number = 0
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = Path(f"{name}-{number}")


def history_length(run: Path) -> int:
    """Return the length in bytes of the file that grows when a training begins."""
    path = run / HISTORY
    return path.stat().st_size if path.is_file() else 0


def clean_up_at_exit(run: Path, new: bool) -> None:
    """Remove at exit what this process writes to a folder, unless it begins to train.

    Args:
        run: the folder.
        new: whether the folder itself is removed too.
    """
    before = set(run.iterdir()) if run.is_dir() else set()
    atexit.register(clean_up, run, history_length(run), before, new)


def clean_up(run: Path, length: int, before: set[Path], new: bool) -> None:
    """Remove the logger's file and the lock of a command that has not begun to train, and its folder if left empty.

    Files of another process that trains there stay. The name of the logger's file holds the process, and a lock that is
    held is not taken.

    Args:
        run: the folder.
        length: of the history when the command started.
        before: files that were there then.
        new: whether the folder is the command's.
    """
    with contextlib.suppress(OSError):
        if history_length(run) != length:
            return
        for path in set(run.iterdir()) - before:
            if path.name.startswith("events.out.tfevents") and str(os.getpid()) in path.name.split("."):
                path.unlink()
            elif path.name == LOCK:
                with contextlib.suppress(Timeout), FileLock(path.resolve(), timeout=0):
                    path.unlink()
        if new:
            run.rmdir()
