"""Table and figure of `eval resolution`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from eval.evaluations import Shown
from eval.plotting.accuracy import accuracy_figure
from eval.report import MAJORITY, Row, accuracy_title, unique
from eval.seeds import few_seeds, mean_over_seeds
from train.data.sizes import ascending


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model, averaged over its seeds, with a column for each resolution; the baseline is last."""
    rows = mean_over_seeds(rows)
    sizes = ascending(row["resolution"] for row in rows)
    cells = {(r["model"], r["resolution"]): f"{r['accuracy']:.1f} ({r['low']:.1f}-{r['high']:.1f})" for r in rows}
    title = accuracy_title(rows)
    lines: list[Row] = [
        {title: model, **{f"{size} px": cells.get((model, size), "") for size in sizes}}
        for model in unique(rows, "model")
    ]
    baseline = max(row[MAJORITY] for row in rows)
    return [*lines, {title: MAJORITY, **{f"{size} px": f"{baseline:.1f}" for size in sizes}}]


SHOWN = Shown(accuracy_figure, summary, few_seeds)
