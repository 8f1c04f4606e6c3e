"""What a run has logged, from its `metrics.csv`: the values of each scalar, by step and by seconds of training."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from train.runs.folder import CURVES, SECONDS


class Scalar(NamedTuple):
    """Values of one scalar, each step once.

    Attributes:
        steps: ascending.
        values: at these steps.
        seconds: of training until then, without the pauses between an interruption and the next `resume`; empty where
            that was not recorded.
    """

    steps: list[int]
    values: list[float]
    seconds: list[float]


def has_log(run: Path) -> bool:
    """Return whether a folder has a table of metrics."""
    return (run / CURVES).is_file()


def read_log(run: Path) -> dict[str, Scalar]:
    """Return the scalars that a run has logged, by the columns of its table.

    Raises:
        FileNotFoundError: a folder without a table of metrics.
    """
    if not has_log(run):
        raise FileNotFoundError(
            f"{run} is not the folder of a run with a log: it has no {CURVES}. Runs of version 0.1.0 have none; "
            f"TensorBoard shows their curves."
        )
    with (run / CURVES).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, Scalar] = {}
    for tag in rows[0] if rows else ():
        of_tag = [row for row in rows if row[tag] and tag not in ("step", SECONDS)]
        timed = all(row.get(SECONDS) for row in of_tag)
        if of_tag:
            seconds = [float(row[SECONDS]) for row in of_tag] if timed else []
            found[tag] = Scalar([int(row["step"]) for row in of_tag], [float(row[tag]) for row in of_tag], seconds)
    return found


def seconds_to(scalar: Scalar, target: float) -> float | None:
    """Return the seconds of training until a scalar reached a target; None where it did not."""
    return next((s for value, s in zip(scalar.values, scalar.seconds, strict=False) if value >= target), None)
