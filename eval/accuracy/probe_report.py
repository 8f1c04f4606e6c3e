"""Table and figure of `eval probe`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval.accuracy.knn_report import training_images
from eval.accuracy.resolution_report import SHOWN as RESOLUTION
from eval.report import Row


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes beneath the table: what was fitted, and how far the choice of the penalty can be trusted."""
    said = [f"By a linear classifier of frozen features, fitted to {training_images(rows)}."]
    if any(row["split"] == "val" and row["val accuracy"] != "" for row in rows):
        said.append("The penalty was chosen on these validation images, so that the accuracies are slightly too high.")
    if edges := sorted({row["penalty"] for row in rows if row["edge"]}):
        shown = " and ".join(f"{penalty:g}" for penalty in edges)
        said.append(f"The penalty {shown} is at the end of --penalties: a wider range may give more.")
    return [*said, *RESOLUTION.notes(rows)]


SHOWN = replace(RESOLUTION, notes=notes)
