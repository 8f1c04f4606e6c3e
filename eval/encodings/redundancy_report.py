"""Table and figure of `eval redundancy`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.style import new_figure
from eval.report import Row, unique

SMALLEST_FONT = 4.5  # smallest size of the numbers in points, below which they are left out
SAME = 1e-6  # error below which a fit counts as exact


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each fitted encoding, with a column for each target."""
    targets = unique(rows, "target")
    cells = {(row["fitted"], row["target"]): "0" if row["covers"] else f"{row['error']:.2f}" for row in rows}
    letters = letters_of(targets)
    return [
        {"error left when fitted to": f"{letters.get(name, '')} {name}".strip()}
        | {letters[target]: cells.get((name, target), "") for target in targets}
        for name in unique(rows, "fitted")
    ]


def letters_of(targets: Sequence[str]) -> dict[str, str]:
    """Return the letter of each target."""
    return {target: chr(ord("a") + i) for i, target in enumerate(targets)}


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the table as an image, with columns labelled by the letters of the rows."""
    targets = unique(rows, "target")
    fitted = [name for name in unique(rows, "fitted") if name in targets]  # the control has only one target
    cells = {(row["fitted"], row["target"]): row["error"] for row in rows}
    values = np.array([[cells[name, target] for target in targets] for name in fitted])
    figure = new_figure(width=6.75, height=1.6 + 0.28 * len(fitted))
    axis = figure.subplots()
    axis.grid(False)
    size = min(6.0, 72 * (figure.get_figwidth() - 2.2) / len(targets) / 1.8)  # three digits in a cell
    image = axis.imshow(values, cmap="viridis_r", vmin=0, aspect="auto")
    for i, j in np.ndindex(*values.shape):
        text = "0" if values[i, j] < SAME else f"{values[i, j]:.2f}".removeprefix("0")
        color = "white" if values[i, j] > values.max() / 2 else "black"
        if size >= SMALLEST_FONT:
            axis.text(j, i, text, ha="center", va="center", fontsize=size, color=color)
    letters = letters_of(targets)
    axis.set_xticks(range(len(targets)), list(letters.values()))
    axis.set_yticks(range(len(fitted)), [f"{name}  {letters[name]}" for name in fitted])
    axis.set(xlabel="target", ylabel="fitted, with a free basis")
    bar = {"location": "right", "pad": 0.02} if size >= SMALLEST_FONT else {"location": "bottom"}
    figure.colorbar(image, label="relative error left in R(r)", aspect=30, **bar)
    return figure


SHOWN = Shown(plot, summary, names=("fitted", "target"))
