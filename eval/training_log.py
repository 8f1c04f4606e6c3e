"""What a run has logged: the values of each scalar, by step and by the time that training had taken.

They come from TensorBoard's files, and from `metrics.csv` where that has more: with another logger there are none, and
of a run that went on elsewhere those of its first part may have stayed behind.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from train.runs.folder import CURVES, SECONDS


class Scalar(NamedTuple):
    """Values of one scalar, each step once.

    Attributes:
        steps: ascending.
        values: at these steps; of a step logged twice, the later one.
        seconds: of training until then, without the pauses between an interruption and the next `resume`; empty where
            that was not recorded.
    """

    steps: list[int]
    values: list[float]
    seconds: list[float]


def has_log(run: Path) -> bool:
    """Return whether a folder has files of TensorBoard, or a table of metrics."""
    return has_events(run) or (run / CURVES).is_file()


def has_events(run: Path) -> bool:
    """Return whether a folder has files of TensorBoard."""
    return any(run.glob("events.out.tfevents*"))


def read_table(path: Path) -> dict[str, Scalar]:
    """Return the scalars of a table of metrics, by its columns."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, Scalar] = {}
    for tag in rows[0] if rows else ():
        of_tag = [row for row in rows if row[tag] and tag not in ("step", SECONDS)]
        timed = all(row.get(SECONDS) for row in of_tag)
        if of_tag:
            seconds = [float(row[SECONDS]) for row in of_tag] if timed else []
            found[tag] = Scalar([int(row["step"]) for row in of_tag], [float(row[tag]) for row in of_tag], seconds)
    return found


def read_log(run: Path) -> dict[str, Scalar]:
    """Return the scalars that a run has logged, by tag.

    A run that was resumed has a file for each process. Seconds count on from one file to the next.

    Raises:
        FileNotFoundError: a folder without TensorBoard's files and without a table of metrics.
    """
    if not has_log(run):
        raise FileNotFoundError(
            f"{run} is not the folder of a run: it has no TensorBoard events (events.*) and no {CURVES}."
        )
    if not has_events(run):
        return read_table(run / CURVES)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # slow to import

    files = [EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload() for path in run.glob("events*")]
    points: dict[str, dict[int, tuple[float, float]]] = {}
    before = 0.0  # seconds of the files until now
    for events in sorted((file for file in files if file.Tags()["scalars"]), key=EventAccumulator.FirstEventTimestamp):
        logged = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
        times = [event.wall_time for series in logged.values() for event in series]
        began = min(events.FirstEventTimestamp(), *times)
        for tag, series in logged.items():
            for event in series:
                points.setdefault(tag, {})[event.step] = (event.value, before + event.wall_time - began)
        before += max(times) - began
    found = {
        tag: Scalar(sorted(by_step), *map(list, zip(*(by_step[step] for step in sorted(by_step)), strict=True)))
        for tag, by_step in points.items()
    }
    table = read_table(run / CURVES) if (run / CURVES).is_file() else {}
    return found | {
        tag: each for tag, each in table.items() if tag not in found or len(each.steps) > len(found[tag][0])
    }


def seconds_to(scalar: Scalar, target: float) -> float | None:
    """Return the seconds of training until a scalar reached a target; None where it did not."""
    return next((s for value, s in zip(scalar.values, scalar.seconds, strict=False) if value >= target), None)
