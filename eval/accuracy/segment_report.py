"""Table and figure of `eval segment`, from its rows and the masks that it has written."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from eval.accuracy.predict_report import SHOWN_IMAGES, SHOWN_LINES, notes
from eval.evaluations import Shown
from eval.plotting.contact_sheet import Tile, contact_sheet, fit, names_apart, thumbnail_of
from eval.plotting.style import COLOURS
from eval.report import Row
from train.utils.output import printable

FOLDER = "segment"  # of the masks, beside the CSV file
SHARE = "share of "  # beginning of the columns of classes
OPACITY = 0.5  # opacity of a mask over its image
# Colours of the classes, red, green and blue, 0 to 255: black for the first one, then those of all figures, then hues.
PALETTE = [
    (0, 0, 0),
    *(tuple(round(255 * part) for part in to_rgb(colour)) for colour in COLOURS[:-1]),
    *(tuple(round(255 * part) for part in colorsys.hsv_to_rgb(0.618 * n % 1, 0.7, 0.9)) for n in range(249)),
]


def place_masks(rows: Sequence[Row], csv: Path) -> list[Row]:
    """Return the rows with the paths of their masks, in the folder `segment`, or `segment.1` for `segment.1.csv`."""
    folder = csv.with_suffix("") if csv.name.startswith(f"{FOLDER}.") else csv.with_name(FOLDER)
    paths = [str(folder / Path(row["mask"]).name) if row["mask"] else "" for row in rows]  # a path in former files
    return [{**row, "mask": path} for row, path in zip(rows, paths, strict=True)]


def shares_in(row: Row) -> list[tuple[str, float]]:
    """Return the classes of a row with their shares of the pixels in %, the largest first."""
    shares = [(name.removeprefix(SHARE), value) for name, value in row.items() if name.startswith(SHARE)]
    return sorted(((name, value) for name, value in shares if value != ""), key=lambda pair: -pair[1])


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each of the first files, with its largest classes."""
    return [
        {
            "image": printable(row["image"]),
            "px": row["resolution"],
            "pixels": ", ".join(f"{name} {value:.1f} %" for name, value in shares_in(row)[:4]) or "not read",
            "mask": printable(row["mask"]),
        }
        for row in rows[:SHOWN_LINES]
    ]


def overlay(row: Row) -> np.ndarray[Any, Any] | None:
    """Return a thumbnail of an image with its mask laid over it, [H, W, 3]; None where one of them cannot be read."""
    picture, _ = thumbnail_of(row["image"])
    if picture is None:
        return None
    try:
        with Image.open(row["mask"]) as mask:
            classes = np.asarray(mask.resize(picture.shape[1::-1], Image.Resampling.NEAREST))
    except OSError:
        return None
    colours = np.asarray(PALETTE, float)[classes]
    shown = np.where(classes[..., None] == 0, picture, (1 - OPACITY) * picture + OPACITY * colours)
    return shown.round().astype(np.uint8)


def plot(rows: Sequence[Row]) -> Figure | None:
    """Draw the first images under their masks; None where none could be read. The first class has no colour."""
    shown = [row for row in rows if row["error"] == ""][:SHOWN_IMAGES]
    tiles = [
        Tile(overlay(row), "\n".join([fit(file), *(fit(name, after=f" {v:.0f} %") for name, v in shares_in(row)[:3])]))
        for row, file in zip(shown, names_apart([row["image"] for row in shown]), strict=True)
    ]
    return contact_sheet(tiles) if tiles else None


SHOWN = Shown(plot, summary, notes, place_files=place_masks)
