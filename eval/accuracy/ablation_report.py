"""Table and figure of `eval ablation`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.evaluations import Shown
from eval.plotting.accuracy import accuracy_dots, group_by_model
from eval.report import Row, accuracy_title
from eval.seeds import mean_over_seeds, without_seed
from eval.statistics import student_interval
from train.data.sizes import Size, ascending


def over_seeds(rows: Sequence[Row], model: str, size: Size, column: str) -> list[float]:
    """Return the values of a column over the seeds of a model at one resolution."""
    return [row[column] for row in rows if without_seed(row["model"]) == model and row["resolution"] == size]


def models_and_sizes(rows: Sequence[Row]) -> tuple[list[str], list[Size]]:
    """Return the models, the reference first, and the resolutions in ascending order."""
    names = dict.fromkeys([rows[0]["reference"], *(without_seed(row["model"]) for row in rows)])
    return list(names), ascending(row["resolution"] for row in rows)


def format_difference(values: Sequence[float]) -> str:
    """Return the mean of differences with its interval, as text."""
    mean, low, high = student_interval(values)
    if low == high:
        return f"{mean:+.1f}" + (" (all seeds alike)" if len(values) > 1 else "")
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the reference's accuracy, then the others' differences to it: means over seeds with their intervals."""
    models, sizes = models_and_sizes(rows)
    reference = mean_over_seeds([row for row in rows if without_seed(row["model"]) == models[0]])
    lines: list[Row] = []
    for model in models:
        if model == models[0]:
            title = model
            cells = {row["resolution"]: "{accuracy:.1f} ({low:.1f} to {high:.1f})".format(**row) for row in reference}
        else:
            title = f"{model} - {models[0]}"
            cells = {size: format_difference(over_seeds(rows, model, size, "difference")) for size in sizes}
        line = {f"{size} px": cells[size] for size in sizes}
        lines.append({accuracy_title(rows): title, **line, "seeds": len(over_seeds(rows, model, sizes[0], "accuracy"))})
    return lines


def plot(rows: Sequence[Row]) -> Figure:
    """Draw a panel for each resolution: every seed a dot, the mean a bar, the reference's mean a line through all."""
    models, by_model = models_and_sizes(rows)[0], group_by_model(rows)
    return accuracy_dots({model: by_model[model] for model in models}, reference=models[0])


SHOWN = Shown(plot, summary, names=("model", "reference"))
