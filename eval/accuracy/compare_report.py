"""Table and figure of `eval compare`, from its rows alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from eval.evaluations import Shown
from eval.plotting.comparison import comparison_figure
from eval.report import Row, accuracy_title, select, unique
from eval.seeds import FEW, few_seeds, mean_over_seeds, without_seed
from train.data.sizes import Size, ascending

NOT_RECORDED = "not recorded"


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model, averaged over its seeds: accuracies, differences, cost and training."""
    sizes = ascending(row["resolution"] for row in rows)
    title, means = accuracy_title(rows), mean_over_seeds(rows)
    return [
        line_of(title, name, select(rows, resolution=sizes[0]), select(means, model=name), sizes)
        for name in unique(means, "model")
    ]


def line_of(title: str, name: str, rows: Sequence[Row], means: Sequence[Row], sizes: Sequence[Size]) -> Row:
    """Return the row of one model.

    Args:
        title: title of the column of names.
        name: name of the model.
        rows: rows of all runs at the first size, with their training records.
        means: means of the model over its seeds, one row for each size.
        sizes: image sizes in ascending order.
    """
    group = without_seed(name.partition(", mean of ")[0])
    runs = [row for row in rows if without_seed(row["model"]) == group]
    at = {row["resolution"]: row for row in means}
    first, last = at[sizes[0]], at[sizes[-1]]
    line: dict[str, Any] = {title: name}
    line |= {f"{size} px": "{accuracy:.1f} ({low:.1f}-{high:.1f})".format(**at[size]) for size in sizes}
    for size in sizes:
        row = at[size]
        same = group == row["reference"]
        line[f"difference to {row['reference']} at {size} px"] = "reference" if same else difference_cell(row)
    line["parameters (M)"] = first["parameters (M)"]
    for row in [first] if len(sizes) == 1 else [first, last]:
        line[f"GMACs at {row['resolution']} px"] = row["GMACs"]
    line[f"peak MiB at {last['resolution']} px"] = last["peak MiB"]
    line["training images/s"] = mean_cell(runs, "training images/s", "{:.0f}")
    if first["target"] != "":
        reached = [row for row in runs if row["seconds to target"] != ""]
        recorded = any(reaches(row) is False for row in runs)
        text = mean_cell([{"x": row["seconds to target"] / 60} for row in reached], "x", "{:.1f}")
        of_all = f" ({len(reached)} of {len(runs)})" if 0 < len(reached) < len(runs) else ""
        text = text + of_all if reached else "not reached" if recorded else NOT_RECORDED
        line[f"minutes to {first['target']:g} % (val)"] = text
    return line


def difference_cell(row: Row) -> str:
    """Return a difference in points with its interval, or a phrase where both are right on the same images."""
    ends = row["difference"], row["difference low"], row["difference high"]
    return "none: right on the same images" if not any(ends) else "{:+.1f} ({:+.1f} to {:+.1f})".format(*ends)


def reaches(row: Row) -> bool | None:
    """Return whether a run's validations reached the target at any time; None where none were recorded."""
    accuracies = [float(point.partition(":")[2]) for point in str(row["validations"]).split()]
    return max(accuracies) >= row["target"] if accuracies else None


def mean_cell(rows: Sequence[Row], column: str, form: str) -> str:
    """Return the mean of a column over the runs that recorded it, as text."""
    values = [row[column] for row in rows if row[column] != ""]
    return form.format(statistics.mean(values)) if values else NOT_RECORDED


def notes(rows: Sequence[Row]) -> list[str]:
    """Return notes on what the intervals of accuracies, and of differences where there are any, are over."""
    names = [str(name) for name in unique(rows, "model")]
    models = {without_seed(name) for name in names}
    if len(models) == 1:
        return few_seeds(rows)
    images = f"Intervals of differences are by the bootstrap over the {rows[0]['images']:,} images"
    if len(names) == len(models):
        return [f"{images}, of one seed each: other seeds can differ by more."]
    return [*few_seeds(rows), f"{images} and these seeds. {FEW}"]


SHOWN = Shown(comparison_figure, summary, notes, names=("model", "reference"))
