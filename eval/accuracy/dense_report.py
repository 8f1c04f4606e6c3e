"""Table and figure of `eval dense`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.columns import interval_text
from eval.evaluations import Shown
from eval.plotting.axes import beside, error_bars, legend_above, mark_training, note_below, plain_logarithm, size_axis
from eval.plotting.overlaps import widen_hidden_lines
from eval.plotting.style import GREY, line_styles, panels
from eval.report import Row, select, unique
from train.data.sizes import ascending

METHODS = ("whole", "tiles")
DASHES: tuple[Any, ...] = ("-", "--")  # line style of each method
BASELINE = "local baseline"
COSTS = {"ms": ("time of an image", "milliseconds"), "peak MiB": ("memory", "peak memory in MiB")}


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each resolution, model and method."""
    sizes = ascending(row["resolution"] for row in rows)
    return [
        {
            "pixels": str(size),
            "model": row["model"],
            "method": row["method"],
            f"mIoU in % ({row['split']})": interval_text(row),
            "pixel accuracy in %": f"{row['accuracy']:.1f}",
            "s": f"{row['ms'] / 1000:.3g}",
            "peak MiB": f"{row['peak MiB']:.3g}",
            "images": row["images"],
        }
        for size in sizes
        for row in select(rows, resolution=size)
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the mIoU of the local baseline at each resolution."""
    values = {str(row["resolution"]): row[BASELINE] for row in rows}
    return [f"{BASELINE}, mIoU in %: " + ", ".join(f"{value:.1f} at {size} px" for size, value in values.items())]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw mIoU over image size (a panel for each method), time and memory; a line for each model and method."""
    models, methods = unique(rows, "model"), unique(rows, "method")
    sizes = ascending(row["resolution"] for row in rows)
    count = len(methods) + len(COSTS)
    figure, axes = panels(count, 3 if count == 3 else 2, height=2.4)
    accuracies, costs = axes[: len(methods)], axes[len(methods) :]
    for number, (model, style) in enumerate(line_styles(models).items()):
        for axis, method, dashes in zip(accuracies, methods, DASHES, strict=False):
            line = sorted(select(rows, model=model, method=method), key=lambda row: row["tokens"])
            if line:
                draw_line(axis, line, beside(axis, number, len(models)), {**style, "linestyle": dashes})
            for each, quantity in zip(costs, COSTS, strict=True):
                sides = [row["resolution"].side for row in line]
                each.plot(sides, [row[quantity] for row in line], **{**style, "linestyle": dashes})
    baseline = {row["resolution"].side: row[BASELINE] for row in sorted(rows, key=lambda row: row["tokens"])}
    ends = [row[end] for row in rows for end in ("low", "high")] + list(baseline.values())
    for axis, method in zip(accuracies, methods, strict=True):
        axis.plot(list(baseline), list(baseline.values()), color=GREY, linestyle=":")
        size_axis(axis, sizes)
        title = f"accuracy, {method}" if len(methods) > 1 else "accuracy"
        axis.set(title=title, ylabel="mIoU in %", ylim=(min(ends) - 2, max(ends) + 2))
        mark_training(axis, rows, named=False)
    for axis, (title, name) in zip(costs, COSTS.values(), strict=True):
        size_axis(axis, sizes)
        axis.set(title=title, ylabel=name, yscale="log")
        plain_logarithm(axis.yaxis)
        widen_hidden_lines(axis)
    legend_above(figure, handles=legend_handles(models, methods))
    counts = {row["images"] for row in rows}
    images = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
    split = ", ".join(unique(rows, "split"))
    note_below(figure, f"{split} split, {images} images; bars: 95 % interval over images; grey line: trained here")
    return figure


def draw_line(axis: Axes, line: Sequence[Row], shift: Any, style: dict[str, Any]) -> None:
    """Draw the mIoU of a model over image size with its intervals."""
    sides = [row["resolution"].side for row in line]
    values = [row["mIoU"] for row in line]
    axis.errorbar(sides, values, error_bars(line, "mIoU"), transform=shift, elinewidth=0.8, **style)


def legend_handles(models: Sequence[str], methods: Sequence[str]) -> list[Line2D]:
    """Return a handle for each model, for each method by its dashes, and for the baseline."""
    alone = len(methods) == 1
    styles = {model: {**style, "linestyle": "-" if alone else "none"} for model, style in line_styles(models).items()}
    handles = [Line2D([], [], label=model, **style) for model, style in styles.items()]
    kinds = [] if alone else list(zip(methods, DASHES, strict=False))
    handles += [Line2D([], [], color=GREY, linestyle=dashes, label=method) for method, dashes in kinds]
    return [*handles, Line2D([], [], color=GREY, linestyle=":", label=BASELINE)]


SHOWN = Shown(plot, summary, notes)
