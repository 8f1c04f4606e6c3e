"""Table and figure of `eval plateau`, from its rows alone."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.evaluations import Shown
from eval.plotting.axes import legend_above, note_below
from eval.plotting.style import line_styles, panels
from eval.report import Row
from eval.seeds import without_seed

ACCURACY = "last accuracy at the worst size"  # column of the accuracy in %
LINE = 26  # letters in each line of a panel's title
MOST_RUNS = 6  # most runs of several models with their losses in one panel


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the losses."""
    return [{name: value for name, value in row.items() if name not in ("window", "losses")} for row in rows]


def smoothed(row: Row) -> tuple[list[int], list[float]]:
    """Return the steps at which losses were logged, and the means of the last `window` losses."""
    points = [point.split(":") for point in row["losses"].split()]
    values, window = [float(value) for _, value in points], int(row.get("window") or 5)
    return [int(step) for step, _ in points], [
        fmean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))
    ]


def draw_losses(axis: Axes, rows: Sequence[Row], styles: Mapping[str, Any]) -> None:
    """Draw the smoothed losses of runs over the share of their training."""
    for row in rows:
        style = styles[without_seed(row["run"])]
        steps, means = smoothed(row)
        shares = [100 * step / row["steps"] for step in steps]
        marker = style["marker"] if len(shares) < 4 else ""  # too few for a line
        axis.plot(shares, means, marker=marker, color=style["color"], linestyle=style["linestyle"], linewidth=0.8)


def loss_limits(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    """Return the limits of the loss axis; from 0, the curves of short training runs on photographs would look flat."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (0.0, 1.05 * high) if from_zero else (low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))


def wrapped(title: str) -> str:
    """Return a title in lines of a panel's width, broken at hyphens where a word alone is longer."""
    long = max(map(len, title.split(" "))) > LINE
    return "\n".join(textwrap.wrap(title, LINE, break_on_hyphens=long))


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the loss of each finished run, and its accuracy over the step at which it left the plateau.

    Each model has a colour, and a panel where there are many runs of several models. The last panel, of accuracies, is
    left out where no run left a plateau, as on photographs.
    """
    finished = [row for row in rows if row.get("finished", True)]  # the number of steps of others is not known
    left = [row for row in finished if "" not in (row["left the plateau at step"], row[ACCURACY])]
    styles = line_styles(list(dict.fromkeys(without_seed(row["run"]) for row in rows)))
    apart = len(styles) > 1 and len(finished) > MOST_RUNS
    losses = len(styles) if apart else 1
    size: dict[str, Any] = {"width": 6.75 if left else 5.0, "height": 2.8}
    if apart:
        size = {"columns": 4, "height": 1.9, "narrowest": 1.5}
    figure, axes = panels(losses + bool(left), **size)
    seeds = {model: sum(without_seed(row["run"]) == model for row in rows) for model in styles}
    names = {model: f"{model} ({count} seeds)" if count > 1 else model for model, count in seeds.items()}
    plain = {model: {**style, "linestyle": "-"} for model, style in styles.items()} if apart else styles
    limits = loss_limits([value for row in finished for value in smoothed(row)[1]], from_zero=bool(left))
    for axis, model in zip(axes, styles, strict=False):
        draw_losses(axis, [row for row in finished if not apart or without_seed(row["run"]) == model], plain)
        axis.set(xlabel="% of the training", ylabel="training loss", xlim=(0, 100), ylim=limits)
        if not apart:
            break
        axis.set_title(wrapped(names[model].replace(" seeds)", "\xa0seeds)")), fontsize=7)
    for row in left:
        style = {**styles[without_seed(row["run"])], "linestyle": "none"}
        share = 100 * row["left the plateau at step"] / row["steps"]
        axes[-1].plot(share, 100 - row[ACCURACY], alpha=0.8, **style)
        if apart:  # its marker stands for the model in the last panel
            loss = np.interp(row["left the plateau at step"], *smoothed(row))
            axes[list(styles).index(without_seed(row["run"]))].plot(share, loss, **style)
    if left:
        short = {"xlabel": "plateau left after %", "ylabel": "error in %", "title": "at the worst image size"}
        long = {"xlabel": "plateau left after % of the training", "ylabel": "error at the worst image size, %"}
        axes[-1].set(**(short if apart else long))
        axes[-1].title.set_fontsize(7)
    if not apart:  # otherwise each model has its panel
        legend_above(figure, handles=[Line2D([], [], label=names[model], **styles[model]) for model in styles])
    note = "val split at the end of the training; losses are means of the last few that were logged"
    note_below(figure, note + ("; markers: where the plateau was left" if left and apart else ""))
    return figure


SHOWN = Shown(plot, summary, names=("run",))
