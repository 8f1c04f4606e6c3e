"""The confusion matrix of one model at one size: its CSV file, and its picture drawn from that file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from eval.plotting.axes import note_below
from eval.plotting.contact_sheet import shorten
from eval.plotting.style import new_figure, width_or
from eval.report import Row, read_csv, views_of
from train.data.sizes import ONE, Size, Views

CORNER = "truth \\ answer"  # the first column
NAMED, COUNTED = 60, 20  # most classes whose names, and whose counts in the cells, are drawn
CELL, DIGIT, LETTER = 0.1, 0.052, 0.055  # in inches: smallest cell with a name or count, a digit, a letter of a name


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix.

    Attributes:
        model: name of the model, or its label in the picture.
        size: size of the images in pixels.
        split: split that the images belong to, `test`, `val` or `train`.
        classes: names of the classes, in the order of their labels.
        counts: number of images of each class (rows) with each answer (columns), [classes, classes].
        views: number of views of each video.
    """

    model: str
    size: Size
    split: str
    classes: Sequence[str]
    counts: np.ndarray[Any, Any]
    views: Views = ONE

    def rows(self) -> list[Row]:
        """Return a row for each class: its name, and the number of its images with each answer."""
        lines = zip(self.classes, self.counts.tolist(), strict=True)
        return [{CORNER: name, **dict(zip(self.classes, line, strict=True))} for name, line in lines]

    def header(self) -> list[str]:
        """Return the comment lines of the CSV file, which name the model, size and split."""
        fields = {"model": self.model, "resolution": self.size, "split": self.split, **self.views.column}
        return [f"{name}: {value}" for name, value in fields.items()]


def images_note(split: str, images: int, views: Views) -> str:
    """Return the images' description for a caption: `test split, 500 images`, or `..., 500 images, 5x3 views`."""
    return ", ".join([f"{split} split", f"{images:,} image{'' if images == 1 else 's'}", *views_of([views.column])])


def is_matrix(path: Path) -> bool:
    """Return whether a file exists and holds a confusion matrix."""
    return path.is_file() and any(CORNER in row for row in read_csv(path)[1][:1])


def read_matrix(path: Path) -> Matrix:
    """Read a matrix from its CSV file.

    Raises:
        ValueError: the comment lines do not name its model, size and split.
    """
    header, rows = read_csv(path)
    fields = dict(line.removeprefix("# ").split(": ", 1) for line in header if ": " in line)
    if not {"model", "resolution", "split"} <= fields.keys():
        raise ValueError(f"the first lines of {path} do not say of which model, size and split it is.")
    counts = np.array([[int(cell) for cell in list(row.values())[1:]] for row in rows])
    classes = [row[CORNER] for row in rows]
    views = Views.of(fields.get("views", str(ONE)))
    return Matrix(fields["model"], Size.of(fields["resolution"]), fields["split"], classes, counts, views)


def draw_matrix(matrix: Matrix) -> Figure:
    """Draw a confusion matrix in % of each class, with names and counts where they fit."""
    counts, total = matrix.counts, len(matrix.classes)
    share = 100 * counts / counts.sum(1, keepdims=True).clip(min=1)
    names = [shorten(name, 22) for name in matrix.classes]
    longest = max(map(len, names))
    side = min(9.0, 1.6 + 0.3 * total)
    width = width_or(side + 0.8)
    height = max(1.0, min(side, width - 0.3))
    cell = (min(width - 0.8, height - 0.3) - 0.2 - LETTER * longest) / total  # approximate, in inches
    figure = new_figure(width, height)
    axis = figure.subplots()
    image = axis.imshow(share, cmap="Blues", vmin=0, vmax=100)
    axis.grid(visible=False)
    if total <= NAMED and cell > CELL:
        axis.set_xticks(range(total), names, rotation=90 if longest > 3 else 0)
        axis.set_yticks(range(total), names)
    if total <= COUNTED and cell > max(CELL, DIGIT * len(str(counts.max()))):
        for i, j in zip(*counts.nonzero(), strict=True):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6}
            axis.text(j, i, str(counts[i, j]), color="white" if share[i, j] > 60 else "black", **style)
    axis.set(xlabel="answer", ylabel="truth", title=f"{matrix.model} at {matrix.size} px")
    colours = figure.colorbar(image, ax=axis, shrink=0.8)
    colours.set_label("% of the images of a class")
    note_below(figure, images_note(matrix.split, int(counts.sum()), matrix.views))
    return figure
