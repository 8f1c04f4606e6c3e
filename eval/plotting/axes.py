"""Axes of image sizes, numbers of tokens and accuracies, and the legend above them."""

from __future__ import annotations

import itertools
import math
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from eval.plotting.style import GREY
from eval.report import MAJORITY, Row, unique
from train.data.sizes import Size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure

FONT = 7  # font size of a legend, in points
# Multiples of a power of ten for ticks: the first set that gives three ticks is used.
STEPS = [(1,), (1, 2, 5), (1, 1.5, *range(2, 10)), [n / 2 for n in range(2, 20)], [n / 10 for n in range(10, 100)]]


def error_bars(rows: Sequence[Row], value: str = "accuracy") -> list[list[float]]:
    """Return the distances of `low` and `high` from a value, in matplotlib's format."""
    return [
        [max(0.0, row[value] - row["low"]) for row in rows],
        [max(0.0, row["high"] - row[value]) for row in rows],
    ]


def mark_training(axis: Axes, rows: Sequence[Row], named: bool = True) -> None:
    """Draw a line at each training resolution on an axis whose sizes are set.

    Args:
        axis: axes to draw on.
        rows: rows with `trained at`, which some old results do not have.
        named: whether to label the line above the panel.
    """
    for size in unique((row for row in rows if row.get("trained at")), "trained at"):
        low, high = axis.get_xlim()
        axis.set_xlim(min(low, size.side / 1.08), max(high, size.side * 1.08))  # a size may have no test
        axis.axvline(size.side, color=GREY, linewidth=0.8, zorder=0)
        if not named:
            continue
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axis.annotate("trained here", (size.side, 1.0), (0, 2), fontsize=6, color=GREY, ha="center", **place)


def size_axis(axis: Axes, sizes: Sequence[Size]) -> None:
    """Make the x axis a logarithmic one of image sizes, with ticks at the measured sizes only.

    Labels of rectangles of equal area are stacked at one tick.
    """
    labels: dict[float, str] = {}
    for size in sizes:
        labels[size.side] = f"{labels[size.side]}\n{size}" if size.side in labels else str(size)
    number_axis(axis, labels, "image size in pixels")


def are_apart(places: Sequence[float], share: float) -> bool:
    """Return whether neighbours of ascending coordinates are at least a share of their range apart."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    return min(gaps, default=0.0) >= share * sum(gaps)


def count_axis(axis: Axes, counts: Iterable[int], name: str = "tokens") -> None:
    """Make the x axis a logarithmic one of counts, with ticks at the measured counts only."""
    number_axis(axis, {count: short_count(count) for count in sorted(set(counts))}, name)


def number_axis(axis: Axes, labels: dict[float, str] | dict[int, str], name: str) -> None:
    """Make the x axis logarithmic, with ticks at these numbers only."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(labels), list(labels.values()))
    axis.set_xticks([], minor=True)
    axis.set_xlabel(name)
    low, high = min(labels), max(labels)
    margin = 1.08 if low == high else (high / low) ** 0.05
    axis.set_xlim(low / margin, high * margin)


def short_count(count: int) -> str:
    """Return a number of tokens as text, in powers of 1,024: 4k for 4,096 and 1M for 1,048,576."""
    for unit, name in ((2**20, "M"), (2**10, "k")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{name}"
    return f"{count:,}"


def beside(axis: Axes, number: int, count: int, sizes: Sequence[Size] = ()) -> Any:
    """Return the transform that shifts the points of one model beside those of the others.

    All shifts together span at most 12 typographic points at any scale, and 8 where sizes are near each other.

    Args:
        axis: axes to draw on.
        number, count: index of the model, and number of models.
        sizes: image sizes on the axis.
    """
    step = min(4.5, (12.0 if nearest_sizes(axis, sizes) > 30 else 8.0) / max(1, count - 1))
    shift = ScaledTranslation((number - (count - 1) / 2) * step / 72, 0, axis.figure.dpi_scale_trans)
    return axis.transData + shift


def nearest_sizes(axis: Axes, sizes: Sequence[Size]) -> float:
    """Return about how many typographic points are between the nearest two sizes on an axis; infinite for one size."""
    places = sorted({math.log2(size.side) for size in sizes})
    if len(places) < 2:
        return math.inf
    gaps = [larger - smaller for smaller, larger in itertools.pairwise(places)]
    return axis.bbox.width / axis.figure.dpi * 72 * min(gaps) / (1.1 * (places[-1] - places[0]))


def legend_above(figure: Figure | SubFigure, axis: Axes | None = None, handles: Sequence[Any] = ()) -> None:
    """Place a legend above all panels, in as many columns as fit the width.

    Args:
        figure: figure of the legend.
        axis: axes whose labelled lines are listed; the first one by default.
        handles: handles to list instead.
    """
    lines, names = (axis or figure.axes[0]).get_legend_handles_labels()
    if handles:
        lines, names = list(handles), [str(handle.get_label()) for handle in handles]
    if not names:
        return
    order = sorted(range(len(names)), key=lambda number: names[number] == MAJORITY)  # models come first
    lines, names = [lines[number] for number in order], [names[number] for number in order]
    width = figure.bbox.width / figure.dpi
    most = next(n for n in range(len(names), 0, -1) if n == 1 or legend_width(names, n) < width)
    columns = math.ceil(len(names) / math.ceil(len(names) / most))  # rows of about equal length
    figure.legend(lines, names, loc="outside upper center", ncols=columns, columnspacing=1.2)


def legend_width(names: Sequence[str], columns: int) -> float:
    """Return the approximate width of a legend in inches, from the longest name of each column."""
    parts = np.array_split(np.array([len(name) for name in names]), columns)  # as matplotlib splits them
    return float(sum(0.5 + part.max() * 0.54 * FONT / 72 for part in parts))


def note_below(figure: Figure | SubFigure, text: str) -> None:
    """Write the caption below a figure: split, images, and the meaning of bars and bands."""
    per_line = int(figure.bbox.width / figure.dpi * 72 / (6 * 0.52))
    figure.supxlabel("\n".join(textwrap.wrap(text, per_line)), fontsize=6, color=GREY, parse_math=False)


def plain_logarithm(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, and with enough of them where it spans less than a decade."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Attempting to set identical low and high")  # of one value
        low, high = axis.get_view_interval()
    if math.isclose(low, high):  # of one value: rounding alone would give the axis a width
        low, high = low / 2, high * 2
        (axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim)(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in STEPS:
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) >= 3:
            break
    if len(ticks) < 2:  # equal or nearly equal values lie between two ticks
        ticks = [tick for tick in MaxNLocator(nbins=4).tick_values(low, high) if low <= tick <= high]
    axis.set_major_locator(FixedLocator(ticks[:: math.ceil(len(ticks) / 8)]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    axis.set_minor_formatter(NullFormatter())


def plain_number(value: float) -> str:
    """Return the label of a logarithmic tick; powers of ten from 10,000 and below 0.001 stay powers."""
    if value >= 1e4 or value < 1e-3:
        exponent = math.floor(math.log10(value) + 1e-9)
        factor = round(value / 10**exponent)
        return f"${'' if factor == 1 else f'{factor}·'}10^{{{exponent}}}$"
    return f"{value:g}"
