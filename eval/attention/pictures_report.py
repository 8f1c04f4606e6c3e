"""Table and figure of `eval attention`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eval.attention.overlay import as_map, grouped, nearly_equal, overlay_figure
from eval.attention.picture_files import place_pictures
from eval.evaluations import Shown
from eval.report import Row

SUM = "weight of all patches"


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each layer, model, resolution and kind: the place and the spread of its weights.

    The sum over all patches is included where the class token or registers have weight too.
    """
    lines: list[Row] = []
    for (kind, model, size), layers in grouped(rows).items():
        for layer, of_layer in layers.items():
            weights = as_map(of_layer)
            shares = weights.clip(0) / max(weights.clip(0).sum(), 1e-30)
            entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum()
            y, x = np.unravel_index(weights.argmax(), weights.shape)
            lines.append(
                {
                    **{"model": model, "px": size, "kind": kind, "layer": layer, "patches": weights.size},
                    "effective patches": f"{np.exp(entropy):.1f}",
                    "largest weight": f"{weights.max():.3g}",
                    "at row, column": f"{y}, {x}",
                    SUM: f"{weights.sum():.3g}",
                }
            )
    if all(line[SUM] == "1" for line in lines):
        lines = [{name: value for name, value in line.items() if name != SUM} for line in lines]
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """Return a note on models whose weights are all nearly equal."""
    why = "so that the picture is nearly uniform, as that of an untrained model"
    return [f"{text}, {why}." for text in nearly_equal(rows)]


SHOWN = Shown(overlay_figure, summary, notes, place_files=place_pictures)
