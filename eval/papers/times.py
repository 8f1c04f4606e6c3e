"""The file of training times that `eval table --list` estimates and `eval report` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.report import read_csv, write_csv
from performer_string.utils.files import check_writable

TIMES = "times.csv"


@dataclass(frozen=True)
class Time:
    """The estimated time of the unfinished training runs of a table at a budget.

    Attributes:
        table, budget: names of the table and budget.
        trainings: number of training runs.
        seconds: total time in seconds, one training after the other.
        device: name of the device on which steps were timed.
    """

    table: str
    budget: str
    trainings: int
    seconds: int
    device: str


def keep_times(folder: Path, times: Sequence[Time]) -> None:
    """Add times to those in a folder, replacing older ones, where the folder can be written to."""
    from train.runs.environment import code

    try:
        check_writable("--out", folder)
    except ValueError:  # the list is printed in any case
        return
    kept = {(time.table, time.budget): time for time in (*read_times(folder), *times)}
    rows = [vars(kept[key]) for key in sorted(kept)]
    if rows:
        command = "python -m eval table --list --budget BUDGET"
        write_csv(folder / TIMES, rows, [f"command: {command}", f"code of the last lines: {code()}"])


def read_times(folder: Path) -> list[Time]:
    """Return the times in a folder; none where there is no file."""
    path = folder / TIMES
    if not path.is_file():
        return []
    return [
        Time(row["table"], row["budget"], int(row["trainings"]), round(float(row["seconds"])), row["device"])
        for row in read_csv(path)[1]
    ]
