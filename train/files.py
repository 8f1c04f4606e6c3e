"""Files that are either whole or not there, and what those of a run are called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKPOINTS = "checkpoints"  # a folder
CONFIG = "config.yaml"
LAST, BEST = "last.ckpt", "best.ckpt"
LOCK = "lock"  # held by the process that trains a run
HELD = "PERFORMER_STRING_LOCK"  # in the environment of a run that a sweep trains: the lock that the sweep holds for it
HISTORY = "history.jsonl"  # of the processes that have trained a run
METRICS = "metrics.json"  # of validation at the end; without it a run is not finished


def latest_checkpoint(run: Path) -> Path | None:
    """What a run can be resumed from: `last.ckpt`, or `best.ckpt` of a run killed before its first one; else None."""
    paths = (run / CHECKPOINTS / name for name in (LAST, BEST))
    return next((path for path in paths if path.is_file()), None)


def checkpoint_of(path: str | Path) -> Path:
    """A checkpoint as it is given, or that of the run whose folder is."""
    path = Path(path).expanduser()
    return (latest_checkpoint(path) or path) if path.is_dir() else path


def remove_partial(folder: Path) -> None:
    """What processes that were killed in `write_aside` have left in a folder, where none writes now."""
    for path in folder.glob("*.part*"):
        if re.fullmatch(r".+\.\d+\.part(\.\w+)?", path.name):
            path.unlink(missing_ok=True)


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
