"""Table and figure of `eval length`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.lengths import length_figure
from eval.report import Row, select, unique


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, rounded."""
    digits = {"ms": 2, "tokens/s": 0, "to softmax": 3, "peak MiB": 1, "error to softmax": 4, "of peak": 3}
    digits |= {"time exponent": 2, "memory exponent": 2}
    return [{k: round(v, digits[k]) if k in digits else v for k, v in row.items()} for row in rows]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw time and memory over the tokens on logarithmic axes, two panels for each level."""
    return length_figure({level: select(rows, level=level) for level in unique(rows, "level")}, "method")


SHOWN = Shown(plot, summary, names=("method", "level"))
