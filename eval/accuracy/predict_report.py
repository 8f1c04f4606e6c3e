"""Table and figure of `eval predict`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from eval.accuracy.contact_sheet import Tile, contact_sheet, picture_of, shorten
from eval.report import Row
from train.command_line import printable

SHOWN_LINES, SHOWN_IMAGES = 30, 24  # in the table, and in the picture


def answers_in(row: Row) -> list[tuple[str, float]]:
    """Return the classes and probabilities of a row, the most probable one first."""
    ranks = [name.removeprefix("class ") for name in row if name.startswith("class ")]
    return [(str(row[f"class {rank}"]), row[f"probability {rank}"]) for rank in ranks if row["error"] == ""]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each of the first files, with its answers."""
    ranks = sum(name.startswith("class ") for name in rows[0])
    lines: list[Row] = []
    for row in rows[:SHOWN_LINES]:
        cells = [f"{name} {100 * p:.1f} %" for name, p in answers_in(row)] or ["not read", *[""] * (ranks - 1)]
        lines.append(
            {"image": printable(row["image"]), "px": row["resolution"], **{str(i + 1): c for i, c in enumerate(cells)}}
        )
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what is said beneath the table: lines that are left out of it, and files that could not be read."""
    bad = sum(row["error"] != "" for row in rows)
    said = [f"{len(rows) - SHOWN_LINES} more are in the files below."] if len(rows) > SHOWN_LINES else []
    if bad:
        said.append(f"{bad} of {len(rows)} files could not be read; the column `error` of the CSV file says why.")
    return said


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the first images, each with its answer."""
    tiles = []
    for row in [row for row in rows if row["error"] == ""][:SHOWN_IMAGES]:
        lines = [
            shorten(Path(row["image"]).name),
            *(f"{shorten(n, 15)} {100 * p:.0f} %" for n, p in answers_in(row)[:2]),
        ]
        tiles.append(Tile(picture_of(row["image"]), "\n".join(lines)))
    return contact_sheet(tiles, empty="no image could be read")
