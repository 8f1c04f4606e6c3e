"""The folder of a run that is given none: made before anything is checked, and gone again where nothing is trained."""

from __future__ import annotations

import atexit
import contextlib
from datetime import datetime
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from train.files import LOCK


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
