"""Read the logged metrics of a run, `metrics.csv`: the values of each scalar by step and by training time."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from train.runs.folder import CURVES, SECONDS

EPOCH = "epoch"  # column of the epoch, from 0


class Scalar(NamedTuple):
    """Values of one scalar, one for each logged step.

    Attributes:
        steps: optimiser steps in ascending order.
        values: values at these steps.
        seconds: training time in seconds until each step, without pauses before a `resume`; empty where not recorded.
        epochs: number of epochs until each step, of which the last may be unfinished; empty where not recorded.
    """

    steps: list[int]
    values: list[float]
    seconds: list[float]
    epochs: list[int]


def has_log(run: Path) -> bool:
    """Return whether a folder contains `metrics.csv`."""
    return (run / CURVES).is_file()


def read_log(run: Path) -> dict[str, Scalar]:
    """Return the logged scalars of a run, by their columns in the table.

    Raises:
        FileNotFoundError: a folder without `metrics.csv`.
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
        timed, counted = (all(row.get(name) for row in of_tag) for name in (SECONDS, EPOCH))
        if of_tag:
            seconds = [float(row[SECONDS]) for row in of_tag] if timed else []
            epochs = [int(float(row[EPOCH])) + 1 for row in of_tag] if counted else []
            steps, values = [int(row["step"]) for row in of_tag], [float(row[tag]) for row in of_tag]
            found[tag] = Scalar(steps, values, seconds, epochs)
    return found


def seconds_to(scalar: Scalar, target: float) -> float | None:
    """Return the training time in seconds until a scalar reached a target; None where it did not."""
    reached = (round(value, 6) >= round(target, 6) for value in scalar.values)  # logged in float32: 0.95 as 0.94999999
    return next((seconds for done, seconds in zip(reached, scalar.seconds, strict=False) if done), None)
