"""The axis of accuracies in a figure, in % or as errors on a logarithmic scale, or of another measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from eval.columns import measure_of
from eval.plotting.style import GREY
from eval.report import MAJORITY, Row, unique
from eval.seeds import mean_over_seeds, without_seed
from train.measures import ACCURACY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from train.measures import Measure

NEARLY_ALL = 97.0  # accuracy in % above which errors are drawn, since lines would coincide
LEAST_RANGE = 20  # least range of an axis in units of a table's last digit: rounding does not look like a difference


class AccuracyScale:
    """An axis of accuracies in %, or of errors on a logarithmic scale where nearly all answers are right.

    Lines at 99.9 and 100 % would coincide on the first. An error of zero is drawn at the lower end of the second. The
    axis of a measure in place of the accuracy has its values.

    Attributes:
        measure: the measure.
        column: column of the values.
        errors: whether errors are drawn.
        label: label of the axis.
    """

    def __init__(self, rows: Sequence[Row]):
        self.measure = measure_of(rows[0])
        self.column = self.measure.name
        self.errors, self.least, self.label = False, 0.0, self.measure.label
        if self.measure is not ACCURACY:
            return
        accuracies = [row["accuracy"] for row in rows]
        names = unique(rows, "model") if "model" in rows[0] else [""]
        seeds = max(Counter(map(without_seed, names)).values())
        self.least = 50 / max(row["images"] for row in rows) / seeds  # half an image in all seeds, in %
        best, worst = (max(self.least, 100 - f(accuracies)) for f in (max, min))
        self.errors = median(accuracies) >= NEARLY_ALL or (max(accuracies) >= NEARLY_ALL and worst / best > 15)
        self.label = "error in %" if self.errors else self.label

    def values(self, rows: Sequence[Row], column: str) -> list[float]:
        """Return the values of a column as coordinates on the axis."""
        if self.errors:
            return [max(100 - row[column], self.least) for row in rows]
        return [row[column] for row in rows]

    def finish(self, axis: Axes, rows: Sequence[Row]) -> None:
        """Set limits and ticks, and mark the majority baseline, after all is drawn."""
        axis.set_ylabel(self.label.replace(" (", "\n("))
        majority = rows[0].get(MAJORITY)
        if self.errors:
            axis.set_yscale("log")
            ends = [row["low"] for row in (mean_over_seeds(rows) if "resolution" in rows[0] else rows)]
            highest = max(1.0, *(100 - row["accuracy"] for row in rows), *(100 - end for end in ends))
            axis.set_ylim(self.least * 0.8, max(self.least * 4, min(100, highest * 1.6)))  # with a tick above zero
        else:
            low, high = widened(*axis.get_ylim(), self.measure)
            axis.set_ylim(low, min(high, self.measure.most + 0.02 * (high - low)))
        if majority is not None:
            mark_majority(axis, 100 - majority if self.errors else majority)
        if self.errors:
            ticks = error_ticks(self.least, axis.get_ylim()[1])  # the baseline may have extended the axis
            axis.set_yticks([self.least, *ticks], ["none", *(f"{tick:g}" for tick in ticks)])
            axis.set_yticks([], minor=True)


def widened(low: float, high: float, measure: Measure) -> tuple[float, float]:
    """Return the ends of an axis of a measure, widened to at least `LEAST_RANGE` within the measure's range."""
    missing = max(0.0, LEAST_RANGE / 10**measure.digits - (high - low))
    if not missing:
        return low, high
    low, high = low - missing / 2, high + missing / 2
    shift = max(0.0, measure.least - low) - max(0.0, high - measure.most)
    return low + shift, high + shift


def error_ticks(least: float, top: float) -> list[float]:
    """Return the ticks of an axis of errors above that of zero: powers of ten, or finer ones.

    Finer ticks are added where there is only one power, or none in the upper third of the axis.

    Args:
        least: coordinate at which an error of zero is drawn, in %.
        top: upper end of the axis in %.
    """
    powers = [tick for tick in (0.01, 0.1, 1, 10, 100) if 2 * least < tick <= top]
    if len(powers) >= 2 and top / powers[-1] < (top / least) ** (1 / 3):
        return powers
    finer = (factor * power for power in (0.01, 0.1, 1, 10) for factor in (1, 2, 5))
    return [tick for tick in finer if 1.5 * least < tick <= top]


def mark_majority(axis: Axes, height: float) -> None:
    """Draw the majority baseline where it is near the range of the axis; the note below the figure always has it."""
    low, high = axis.get_ylim()
    logarithmic = axis.get_yscale() == "log"
    if height < 4 * high if logarithmic else low - 0.5 * (high - low) < height:
        above = height * 1.5 if logarithmic else height + 0.05 * (height - low)  # models near it have learned nothing
        reach = (low if logarithmic else min(low, height - 2), max(high, above))
        axis.set_ylim(*reach)
        axis.axhline(height, color=GREY, linestyle=":", linewidth=1, zorder=0, label=MAJORITY)  # text may overlap bars
