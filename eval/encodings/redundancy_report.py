"""Table and figure of `eval redundancy`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from eval.plotting.style import new_figure
from eval.report import Row, unique

NAMES = ("fitted", "target")  # the columns that have labels
SAME = 1e-6  # the error below which a fit counts as exact


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each encoding that is fitted, with a column for each target."""
    targets = unique(rows, "target")
    cells = {(row["fitted"], row["target"]): "0" if row["covers"] else f"{row['error']:.2f}" for row in rows}
    letters = {target: chr(ord("a") + i) for i, target in enumerate(targets)}
    return [
        {"error left when fitted to": f"{letters.get(name, '')} {name}".strip()}
        | {letters[target]: cells.get((name, target), "") for target in targets}
        for name in unique(rows, "fitted")
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the table as a picture."""
    targets = unique(rows, "target")
    fitted = [name for name in unique(rows, "fitted") if name in targets]  # not the control, which has one target
    cells = {(row["fitted"], row["target"]): row["error"] for row in rows}
    values = np.array([[cells[name, target] for target in targets] for name in fitted])
    figure = new_figure(width=6.75, height=1.6 + 0.28 * len(fitted))
    axis = figure.subplots()
    axis.grid(False)
    image = axis.imshow(values, cmap="viridis_r", vmin=0, aspect="auto")
    for i, j in np.ndindex(*values.shape):
        text = "0" if values[i, j] < SAME else f"{values[i, j]:.2f}"
        color = "white" if values[i, j] > values.max() / 2 else "black"
        axis.text(j, i, text, ha="center", va="center", fontsize=6, color=color)
    axis.set_xticks(range(len(targets)), targets, rotation=45, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(fitted)), fitted)
    axis.set(xlabel="target", ylabel="fitted, with a free basis")
    figure.colorbar(image, label="relative error left in R(r)")
    return figure
