"""The table of a sweep's runs, `summary.csv`, and the progress of one in training."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from performer_string.utils.files import write_aside
from train.runs.folder import CURVES, METRICS, SUMMARY

LOCK = f".{SUMMARY}.lock"  # hidden, so that `runs/sweep/*` does not name it
WAIT = 10.0  # seconds until the table is written without the lock


@contextlib.contextmanager
def table_lock(out: Path) -> Iterator[None]:
    """Keep other processes from writing the table of a folder of runs within a block.

    A file system without locks, or a lock that a crashed machine left there, is no reason to write no table.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, NotImplementedError):  # also a Timeout of filelock
            held.enter_context(FileLock((out / LOCK).resolve(), timeout=WAIT))
        yield


def write_summary(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the final metrics of finished runs as CSV.

    Rows of other runs, from another sweep of the same name, are kept as long as these runs are in the folder.

    Args:
        out: folder of the runs.
        rows: rows of the finished runs, with their names as `run`.
    """
    if not rows:
        return
    named = {row["run"] for row in rows}
    with table_lock(out):  # from reading to writing: a row that another process adds between them would be lost
        before = read_summary(out)
        others = [row for row in before if row["run"] not in named and (out / row["run"] / METRICS).is_file()]
        table = [*rows, *others]
        with write_aside(out / SUMMARY) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in table for key in row)))
            writer.writeheader()
            writer.writerows(table)


def read_summary(out: Path) -> list[dict[str, str]]:
    """Return the rows of an existing `summary.csv`; empty where it is damaged or missing."""
    path = out / SUMMARY
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        return [row for row in reader if "run" in row and None not in row and None not in row.values()]


def progress_of(folder: Path) -> str:
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
