"""Table and figure of `eval decay`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.lengths import length_figure
from eval.report import Row


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, rounded and ordered by attention."""
    digits = {"ms": 1, "to plain": 2, "peak MiB": 1, "time exponent": 2, "memory exponent": 2}
    return [
        {k: f"{v:.2%}" if k == "error" else round(v, digits[k]) if k in digits else v for k, v in row.items()}
        for row in sorted(rows, key=lambda row: (row["attention"], row["tokens"]))
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw time and memory over the tokens, on logarithmic axes."""
    return length_figure({"": rows}, "attention")


SHOWN = Shown(plot, summary, names=("attention",))
