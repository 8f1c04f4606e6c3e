"""When does each run leave the plateau that its training loss begins with, and how accurate is it at the end?

On the arrow task the loss stays near that of the majority baseline until a model knows where to look. It then falls
below a tenth of that within some hundred steps. Seeds differ in when. The loss is the one logged in training
(TensorBoard), as a mean over the last `--window` logged values. Photographs have no such plateau: their losses are
drawn alone where no run falls below `--threshold`.

Columns: `run`, `finished`, `steps`, `left the plateau at step` (empty for never), `lowest accuracy` (% of the last
validation, over resolutions), `window`, `losses` (all that were logged, as step:loss).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tqdm import tqdm

from eval.plotting.axes import legend_above, note_below
from eval.plotting.style import line_styles, panels
from eval.report import Row
from eval.statistics import without_seed
from eval.training_log import has_log, read_log
from train.run_folder import METRICS

ON_CPU = True
NAMES = "run"  # the column that has labels
LOSS = "train/loss"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval plateau`."""
    parser.add_argument("--run", nargs="+", type=Path, required=True, help="folders of runs; what is none is skipped")
    parser.add_argument("--threshold", type=float, default=0.5, help="loss at which the plateau counts as left")
    parser.add_argument("--window", type=int, default=5, help="logged losses to take the mean of")


def first_step_below(steps: Sequence[int], losses: Sequence[float], threshold: float, window: int) -> int | None:
    """Return the first step at which the mean of the last `window` losses is below a threshold; None for never."""
    for end in range(window, len(losses) + 1):
        if fmean(losses[end - window : end]) < threshold:
            return steps[end - 1]
    return None


def with_logs(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of runs among several paths, and say which paths are skipped; a single one is not."""
    runs = [path for path in paths if has_log(path)]
    skipped = [str(path) for path in paths if path not in runs and path.exists()]
    if runs and skipped:
        tqdm.write(f"Skipped, for want of TensorBoard's files: {', '.join(skipped)}", file=sys.stderr)
    return [path for path in paths if path in runs or not path.exists()] if runs else list(paths)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each run."""
    if options.window < 1:
        raise ValueError(f"--window has to be 1 or more, not {options.window}.")
    for run in tqdm(with_logs(options.run), desc="runs", leave=False, disable=None):
        logged = read_log(run)
        if LOSS not in logged:
            raise ValueError(f"{run} has logged no {LOSS}.")
        steps, losses = logged[LOSS].steps, logged[LOSS].values
        accuracies = [scalar.values[-1] for tag, scalar in logged.items() if tag.startswith("val/accuracy")]
        left = first_step_below(steps, losses, options.threshold, options.window)
        yield {
            "run": run.absolute().name,  # of "." too
            "finished": (run / METRICS).is_file(),
            "steps": max(scalar.steps[-1] for tag, scalar in logged.items() if tag == LOSS or tag.startswith("val/"))
            + 1,
            "left the plateau at step": "" if left is None else left,
            "lowest accuracy": round(100 * min(accuracies), 2) if accuracies else "",
            "window": options.window,
            "losses": " ".join(f"{step}:{loss:.3g}" for step, loss in zip(steps, losses, strict=True)),
        }


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


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the loss of each finished run, and its accuracy over when it left the plateau; one colour a model.

    The second panel is left out where no run has left a plateau, as on photographs.
    """
    finished = [row for row in rows if row.get("finished", True)]  # else the number of its steps is not known
    left = [row for row in finished if row["left the plateau at step"] != "" and row["lowest accuracy"] != ""]
    styles = line_styles(list(dict.fromkeys(without_seed(row["run"]) for row in rows)))
    figure, axes = panels(2 if left else 1, width=6.75 if left else 5.0, height=2.8)
    for row in finished:
        style = styles[without_seed(row["run"])]
        steps, means = smoothed(row)
        shares = [100 * step / row["steps"] for step in steps]
        marker = style["marker"] if len(shares) < 4 else ""  # too few for a line
        axes[0].plot(shares, means, marker=marker, color=style["color"], linestyle=style["linestyle"], linewidth=0.8)
    axes[0].set(xlabel="% of the training", ylabel="training loss", xlim=(0, 100), ylim=(0, None))
    for row in left:
        style = {**styles[without_seed(row["run"])], "linestyle": "none"}
        share = 100 * row["left the plateau at step"] / row["steps"]
        axes[1].plot(share, 100 - row["lowest accuracy"], alpha=0.8, **style)
    if left:
        axes[1].set(xlabel="plateau left after % of the training", ylabel="error at the worst image size, %")
    seeds = {model: sum(without_seed(row["run"]) == model for row in rows) for model in styles}
    names = {model: f"{model} ({count} seeds)" if count > 1 else model for model, count in seeds.items()}
    legend_above(figure, handles=[Line2D([], [], label=names[model], **style) for model, style in styles.items()])
    note_below(figure, "val split at the end of the training; losses are means of the last few that were logged")
    return figure
