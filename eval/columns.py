"""The columns of measures in the rows of evaluations, and their cells as text.

The main measure of a row has its interval in `low` and `high`, and its difference to a reference in `difference`. For a
further one these columns begin with its name, as `mae low` and `mae difference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from train.measures import ACCURACY, MEASURES, MIOU, Measure

Row = Mapping[str, Any]
KINDS = ((MIOU,), *MEASURES.values())  # of the measures of a row


def measures_of(row: Row) -> list[Measure]:
    """Return the measures of a row, the main one first; the accuracy where there is none."""
    found = ([measure for measure in kind if measure.name in row] for kind in KINDS)
    return next(filter(None, found), [ACCURACY])


def measure_of(row: Row) -> Measure:
    """Return the main measure of a row."""
    return measures_of(row)[0]


def columns_of(measure: Measure, values: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of a measure, rounded for a CSV file.

    Args:
        measure: the measure.
        values: its values by their columns where it is the main one, such as `low` and `difference`.
    """
    main = any(measure is kind[0] for kind in KINDS)
    prefix = "" if main else f"{measure.name} "
    return {name if name == measure.name else prefix + name: measure.rounded(value) for name, value in values.items()}


def by_measure(rows: Sequence[Row]) -> dict[Measure, list[Row]]:
    """Return for each measure the rows in which it is the main one, without the columns of the others."""
    measures = measures_of(rows[0])
    if len(measures) == 1:
        return {measures[0]: list(rows)}
    names = {measure.name for measure in measures}

    def of(measure: Measure, row: Row) -> Row:
        shared = {name: cell for name, cell in row.items() if name.partition(" ")[0] not in names}
        prefix = f"{measure.name} "
        own = {name.removeprefix(prefix): cell for name, cell in row.items() if name.startswith(prefix)}
        return {**shared, measure.name: row[measure.name], **own}

    return {measure: [of(measure, row) for row in rows] for measure in measures}


def interval_text(row: Row, join: str = "") -> str:
    """Return the main measure of a row with its interval, such as `98.2 (97.5-98.7)`.

    Args:
        row: the row.
        join: text between the ends; by default `-` where no value is negative, and else ` to `.
    """
    measure = measure_of(row)
    value, low, high = (f"{row[name]:.{measure.digits}f}" for name in (measure.name, "low", "high"))
    return f"{value} ({low}{join or ('-' if measure.least >= 0 else ' to ')}{high})"


def signed(measure: Measure, difference: float) -> str:
    """Return a difference of a measure with its sign, which is + where it rounds to zero."""
    return f"{round(difference, measure.digits) + 0.0:+.{measure.digits}f}"  # -0.0 + 0.0 is 0.0


def difference_text(measure: Measure, mean: float, low: float, high: float) -> str:
    """Return a difference with its interval, such as `-1.5 (-2.0 to -1.0)`."""
    value, *ends = (signed(measure, each) for each in (mean, low, high))
    return f"{value} ({' to '.join(ends)})"
