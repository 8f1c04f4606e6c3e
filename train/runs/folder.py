"""The folder of a run: names of its files, its creation, and its clean-up."""

from __future__ import annotations

import contextlib
import os
import re
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

CHECKPOINTS = "checkpoints"  # folder of the checkpoints
CONFIG = "config.yaml"
LAST, BEST = "last.ckpt", "best.ckpt"
LOCK = "lock"  # lock file of the process that trains a run
LOCK_VARIABLE = "PERFORMER_STRING_LOCK"  # environment variable with the lock that a sweep holds for a run
HISTORY = "history.jsonl"  # processes that trained a run
METRICS = "metrics.json"  # final validation metrics; without it a run is not finished
COUNTED = "val/images"  # in it, how many images the last validation counted
CURVES = "metrics.csv"  # all metrics of a run, a row for each step
SECONDS = "seconds"  # column of training time, without pauses before a `resume`
OUT_OF_TIME = 75  # exit status of a training run that can be resumed: os.EX_TEMPFAIL where it exists
SUMMARY = "summary.csv"  # table of a sweep's runs, beside their folders


def latest_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint to resume a run from: `last.ckpt`, or `best.ckpt` of a run killed early, or None."""
    paths = (run / CHECKPOINTS / name for name in (LAST, BEST))
    return next((path for path in paths if path.is_file()), None)


def run_of(checkpoint: Path) -> Path | None:
    """Return the folder of the run that a checkpoint belongs to; None for a separate file."""
    return checkpoint.parents[1] if checkpoint.parent.name == CHECKPOINTS else None


def remove_partial(folder: Path) -> None:
    """Remove the temporary files of processes that were killed in `write_aside`, while no process writes."""
    for path in folder.glob("*.part*"):
        if re.fullmatch(r".+\.\d+\.part(\.\w+)?", path.name):
            path.unlink(missing_ok=True)


def name_run_folder() -> Path:
    """Return runs/TIME, the folder of a run without a name."""
    return Path(f"runs/{datetime.now():%Y%m%d-%H%M%S}")


def make_run_folder() -> Path:
    """Create runs/TIME, or runs/TIME-1 and so on for several runs in the same second, and return it."""
    path = name = name_run_folder()
    number = 0
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = Path(f"{name}-{number}")


def clean_up(run: Path, new: bool) -> None:
    """Remove the logger's file and the lock of a command that did not begin to train, and its folder if empty.

    Files of another process that trains there are kept: the name of the logger's file contains the process number, and
    a held lock is not removed.

    Args:
        run: folder of the run.
        new: whether the command created the folder.
    """
    with contextlib.suppress(OSError):
        for path in run.glob("events.out.tfevents*"):
            if str(os.getpid()) in path.name.split("."):
                path.unlink()
        if (run / LOCK).exists():
            with contextlib.suppress(Timeout), FileLock((run / LOCK).resolve(), timeout=0):
                (run / LOCK).unlink()
        if new:
            run.rmdir()
