"""Table and figure of `eval predict`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.contact_sheet import Tile, contact_sheet, fit, names_apart, thumbnail_of
from eval.report import Row
from train.data.sizes import Size
from train.utils.output import printable

SHOWN_LINES, SHOWN_IMAGES = 30, 24  # most rows of the table, and images of the picture
NEARLY_ALL = 0.98  # share of each side; no frame is drawn where a model saw more


def answers_in(row: Row) -> list[tuple[str, float]]:
    """Return the classes and probabilities of a row, the most probable one first."""
    ranks = [name.removeprefix("class ") for name in row if name.startswith("class ")]
    return [(str(row[f"class {rank}"]), row[f"probability {rank}"]) for rank in ranks if row["error"] == ""]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each of the first files, with its answers."""
    ranks = sum(name.startswith("class ") for name in rows[0])
    lines: list[Row] = []
    for row in rows[:SHOWN_LINES]:
        cells = [f"{name} {100 * p:.1f} %" for name, p in answers_in(row)] or ["not read", *[""] * (ranks - 1)]
        lines.append(
            {"image": printable(row["image"]), "px": row["resolution"], **{str(i + 1): c for i, c in enumerate(cells)}}
        )
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes beneath the table: the number of rows left out, and files that could not be read."""
    bad = sum(row["error"] != "" for row in rows)
    said = [f"{len(rows) - SHOWN_LINES} more are in the files below."] if len(rows) > SHOWN_LINES else []
    if bad:
        said.append(f"{bad} of {len(rows)} files could not be read; the column `error` of the CSV file says why.")
    return said


def plot(rows: Sequence[Row]) -> Figure | None:
    """Draw the first images, each with its answer; None where none could be read."""
    tiles, shown = [], [row for row in rows if row["error"] == ""][:SHOWN_IMAGES]
    for row, file in zip(shown, names_apart([row["image"] for row in shown]), strict=True):
        picture, size = thumbnail_of(row["image"])
        frame = seen_of(size, row) if picture is not None and "resized" in row else None
        seen = f"{'' if frame is None else 'frame: '}seen at {row['resolution']} px"
        answers = (fit(name, after=f" {100 * p:.0f} %") for name, p in answers_in(row)[:2])
        tiles.append(Tile(picture, "\n".join([fit(file), *answers, seen]), frame))
    return contact_sheet(tiles) if tiles else None


def seen_of(size: Sequence[int], row: Row) -> tuple[float, float] | None:
    """Return the central shares of an image's height and width that a model saw; None for nearly all."""
    wanted: Size = row["resolution"][-2:]  # behind the frames of a video
    scale = max(side / of_image for side, of_image in zip(wanted, size, strict=True))
    if not row["resized"]:
        scale = max(1.0, scale)  # an image below one patch is enlarged
    height, width = (min(1.0, side / (scale * of_image)) for side, of_image in zip(wanted, size, strict=True))
    return (height, width) if min(height, width) < NEARLY_ALL else None


SHOWN = Shown(plot, summary, notes)
