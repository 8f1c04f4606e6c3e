"""Table and figure of `eval knn`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval.accuracy.resolution_report import SHOWN as RESOLUTION
from eval.report import Row, unique


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes beneath the table: how images were classified, and on intervals over few seeds."""
    row = rows[0]
    by = f"By the {row['k']} nearest of {training_images(rows)}, with votes of temperature {row['temperature']:g}"
    return [f"{by}.", *RESOLUTION.notes(rows)]


def training_images(rows: Sequence[Row]) -> str:
    """Return the numbers of training images as text."""
    return f"{' or '.join(f'{number:,}' for number in unique(rows, 'training images'))} training images"


SHOWN = replace(RESOLUTION, notes=notes)
