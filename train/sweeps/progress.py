"""The progress of a run in training."""

from __future__ import annotations

import contextlib
import csv
import os
from pathlib import Path

from train.runs.folder import CURVES


def progress(folder: Path) -> str:
    """Return the name of a run with the epoch and step of its last metrics, each counted from 1."""
    lines = list[bytes]()
    with contextlib.suppress(FileNotFoundError), (folder / CURVES).open("rb") as file:
        names = file.readline()
        file.seek(max(len(names), file.seek(0, os.SEEK_END) - 2**16))
        lines = file.read().split(b"\n")[:-1]  # without an incomplete row
    if not lines:
        return folder.name
    row = dict(zip(*csv.reader([names.decode(), lines[-1].decode()]), strict=False))
    epoch = f" epoch {int(float(row['epoch'])) + 1}" if row.get("epoch") else ""
    return f"{folder.name}{epoch} step {int(row['step']) + 1}"
