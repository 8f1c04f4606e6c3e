"""When does each run leave the initial plateau of its training loss, and how accurate is it at the end?

On the arrow task the loss stays near that of the majority baseline until a model knows where to look. It then falls
below a tenth of that within some hundred steps. Seeds differ in when. The loss is the one logged in training
(`metrics.csv`), as a mean over the last `--window` logged values. Photographs have no such plateau: their losses are
drawn alone where no run falls below `--threshold`.

Columns: `run`, `finished`, `steps`, `left the plateau at step` (empty for never), `last accuracy at the
worst size` (% of the last validation, the lowest over resolutions), `window`, `losses` (all that were logged, as
step:loss).
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.evaluations import Evaluation, Shown
from eval.names import names_of
from eval.plotting.axes import legend_above, note_below
from eval.plotting.style import line_styles, panels
from eval.report import Row
from eval.seeds import without_seed
from eval.tables import with_units
from eval.training_log import has_log, read_log
from train.runs.folder import CHECKPOINTS, LAST, METRICS
from train.utils.progress import note, progress
from train.utils.ranges import at_least

if TYPE_CHECKING:
    import torch

LOSS = "train/loss"
ACCURACY = "last accuracy at the worst size"  # column of the accuracy in %
LINE = 26  # letters in each line of a panel's title
MOST_RUNS = 6  # most runs of several models with their losses in one panel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval plateau`."""
    runs: dict[str, Any] = {"action": "extend", "type": Path, "metavar": "RUN"}
    parser.add_argument("run", nargs="*", default=[], help="folders of runs; other paths are skipped", **runs)
    parser.add_argument("--run", nargs="+", help="the same", **runs)
    parser.add_argument("--threshold", type=float, default=0.5, help="loss below which the plateau counts as left")
    parser.add_argument("--window", type=at_least(1), default=5, help="number of logged losses in the running mean")


def first_step_below(steps: Sequence[int], losses: Sequence[float], threshold: float, window: int) -> int | None:
    """Return the first step at which the mean of the last `window` losses is below a threshold; None for never."""
    for end in range(window, len(losses) + 1):
        if fmean(losses[end - window : end]) < threshold:
            return steps[end - 1]
    return None


def with_logs(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of runs among paths, each once, and report skipped paths; a single one is never skipped."""
    paths = list({path.resolve(): path for path in paths}.values())  # each once
    runs = [path for path in paths if has_log(path)]
    skipped = [str(path) for path in paths if path not in runs and path.exists()]
    if runs and skipped:
        note(f"Skipped, because they have no log: {', '.join(skipped)}")
    return [path for path in paths if path in runs or not path.exists()] if runs else list(paths)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each run."""
    if not options.run:
        raise ValueError("no run is named: python -m eval plateau RUN ..., with the folders of training runs.")
    runs = with_logs(options.run)
    names = names_of([run / CHECKPOINTS / LAST for run in runs])
    for run, name in progress(list(zip(runs, names, strict=True)), desc="runs"):
        logged = read_log(run)
        if LOSS not in logged:
            raise ValueError(f"{run} has logged no {LOSS}.")
        steps, losses = logged[LOSS].steps, logged[LOSS].values
        accuracies = [scalar.values[-1] for tag, scalar in logged.items() if tag.startswith("val/accuracy")]
        left = first_step_below(steps, losses, options.threshold, options.window)
        yield {
            "run": name,
            "finished": (run / METRICS).is_file(),
            "steps": max(scalar.steps[-1] for tag, scalar in logged.items() if tag == LOSS or tag.startswith("val/"))
            + 1,
            "left the plateau at step": "" if left is None else left,
            ACCURACY: round(100 * min(accuracies), 2) if accuracies else "",
            "window": options.window,
            "losses": " ".join(f"{step}:{loss:.3g}" for step, loss in zip(steps, losses, strict=True)),
        }


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the losses."""
    lines = [{name: value for name, value in row.items() if name not in ("window", "losses")} for row in rows]
    return [*with_units(lines)]


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
EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN, on_cpu=True)
