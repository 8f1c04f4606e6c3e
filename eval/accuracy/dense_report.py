"""Table and figure of `eval dense`, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from eval.plotting.axes import beside, error_bars, legend_above, mark_training, note_below, plain_logarithm, size_axis
from eval.plotting.style import GREY, line_styles, panels
from eval.report import Row, select, unique
from train.data.sizes import ascending

METHODS = ("whole", "tiles")
BASELINE = "local baseline"
COSTS = {"ms": ("time of an image", "milliseconds"), "peak MiB": ("memory", "peak memory in MiB")}


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each resolution, model and method."""
    sizes = ascending(row["resolution"] for row in rows)
    return [
        {
            "pixels": str(size),
            "model": row["model"],
            "method": row["method"],
            f"mIoU in % ({row['split']})": f"{row['mIoU']:.1f} ({row['low']:.1f}-{row['high']:.1f})",
            "pixels right in %": f"{row['accuracy']:.1f}",
            "s": f"{row['ms'] / 1000:.3g}",
            "peak MiB": f"{row['peak MiB']:.3g}",
            "images": row["images"],
        }
        for size in sizes
        for row in select(rows, resolution=size)
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the mIoU of the rule that looks at one place only, at each resolution."""
    values = {str(row["resolution"]): row[BASELINE] for row in rows}
    return [f"{BASELINE}, mIoU in %: " + ", ".join(f"{value:.1f} at {size} px" for size, value in values.items())]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw mIoU, time and memory over image size, a line for each model and method."""
    names = [(model, method) for model in unique(rows, "model") for method in unique(rows, "method")]
    lines = {name: select(rows, model=name[0], method=name[1]) for name in names}
    lines = {name: sorted(line, key=lambda row: row["tokens"]) for name, line in lines.items() if line}
    styles = line_styles([f"{model}, {method}" for model, method in lines])
    sizes = ascending(row["resolution"] for row in rows)
    figure, axes = panels(3, 3, height=2.6)
    for number, ((label, style), line) in enumerate(zip(styles.items(), lines.values(), strict=True)):
        sides = [row["resolution"].side for row in line]
        bars = error_bars(line, "mIoU")
        shift = beside(axes[0], number, len(lines))
        values = [row["mIoU"] for row in line]
        axes[0].errorbar(sides, values, bars, label=label, transform=shift, elinewidth=0.8, **style)
        ends = [row[end] for row in line for end in ("low", "high")]
        axes[0].update_datalim([(side, end) for side in sides for end in ends])
        for axis, quantity in zip(axes[1:], COSTS, strict=True):
            axis.plot(sides, [row[quantity] for row in line], label=label, **style)
    baseline = {row["resolution"].side: row[BASELINE] for row in sorted(rows, key=lambda row: row["tokens"])}
    axes[0].plot(list(baseline), list(baseline.values()), color=GREY, linestyle=":", label=BASELINE)
    axes[0].autoscale_view()
    for axis in axes:
        size_axis(axis, sizes)
    axes[0].set(title="accuracy", ylabel="mIoU in %")
    mark_training(axes[0], rows, named=False)
    for axis, (title, name) in zip(axes[1:], COSTS.values(), strict=True):
        axis.set(title=title, ylabel=name, yscale="log")
        plain_logarithm(axis.yaxis)
    legend_above(figure)
    counts = {row["images"] for row in rows}
    images = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
    split = ", ".join(unique(rows, "split"))
    note_below(figure, f"{split} split, {images} images; bars: 95 % interval over images; grey line: trained here")
    return figure
