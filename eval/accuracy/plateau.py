"""When does each run leave the plateau that its training loss begins with, and how accurate is it at the end?

On the arrow task the loss stays near that of the majority baseline until a model knows where to look. It then falls
below a tenth of that within some hundred steps. Seeds differ in when. The loss is the one logged in training
(TensorBoard), as a mean over the last `--window` logged values.

Columns: `run`, `finished`, `steps`, `left the plateau at step` (empty for never), `lowest accuracy` (% of the last
validation, over resolutions), `window`, `losses` (all that were logged, as step:loss).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tqdm import tqdm

from eval.report import Row
from eval.statistics import without_seed
from train.run_folder import METRICS

ON_CPU = True
LOSS = "train/loss"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval plateau`."""
    parser.add_argument("--run", nargs="+", type=Path, required=True, help="folders of runs")
    parser.add_argument("--threshold", type=float, default=0.5, help="loss at which the plateau counts as left")
    parser.add_argument("--window", type=int, default=5, help="logged losses to take the mean of")


def first_step_below(steps: Sequence[int], losses: Sequence[float], threshold: float, window: int) -> int | None:
    """Return the first step at which the mean of the last `window` losses is below a threshold; None for never."""
    for end in range(window, len(losses) + 1):
        if fmean(losses[end - window : end]) < threshold:
            return steps[end - 1]
    return None


def logged_scalars(run: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Return steps and values of each scalar that a run logged; of a step logged twice, the later value.

    Raises:
        FileNotFoundError: a folder without TensorBoard's files.
    """
    if not any(run.glob("events*")):
        raise FileNotFoundError(f"{run} is not the folder of a run: it has no TensorBoard events (events.*).")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # slow to import

    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    scalars = {}
    for tag in events.Tags()["scalars"]:
        by_step = {event.step: event.value for event in events.Scalars(tag)}
        scalars[tag] = (sorted(by_step), [by_step[step] for step in sorted(by_step)])
    return scalars


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each run."""
    if options.window < 1:
        raise ValueError(f"--window has to be 1 or more, not {options.window}.")
    for run in tqdm(options.run, desc="runs", leave=False, disable=None):
        logged = logged_scalars(run)
        if LOSS not in logged:
            raise ValueError(f"{run} has logged no {LOSS}.")
        steps, losses = logged[LOSS]
        accuracies = [values[-1] for tag, (_, values) in logged.items() if tag.startswith("val/accuracy")]
        left = first_step_below(steps, losses, options.threshold, options.window)
        yield {
            "run": run.absolute().name,  # of "." too
            "finished": (run / METRICS).is_file(),
            "steps": max(at[-1] for tag, (at, _) in logged.items() if tag == LOSS or tag.startswith("val/")) + 1,
            "left the plateau at step": "" if left is None else left,
            "lowest accuracy": round(100 * min(accuracies), 2) if accuracies else "",
            "window": options.window,
            "losses": " ".join(f"{step}:{loss:.3g}" for step, loss in zip(steps, losses, strict=True)),
        }


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the losses."""
    return [{name: value for name, value in row.items() if name not in ("window", "losses")} for row in rows]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw the loss of each finished run, and its accuracy over when it left the plateau; one colour a model."""
    figure = Figure(figsize=(10, 4.5))
    left, right = figure.subplots(1, 2)
    models = list(dict.fromkeys(without_seed(row["run"]) for row in rows))
    for row in rows:
        if not row["finished"]:
            continue  # the number of its steps is not known
        colour = f"C{models.index(without_seed(row['run'])) % 10}"
        points = [point.split(":") for point in row["losses"].split()]
        values = [float(value) for _, value in points]
        means = [fmean(values[max(0, i + 1 - row["window"]) : i + 1]) for i in range(len(values))]
        left.plot([100 * int(step) / row["steps"] for step, _ in points], means, color=colour, linewidth=1)
        if row["left the plateau at step"] != "" and row["lowest accuracy"] != "":
            share = 100 * row["left the plateau at step"] / row["steps"]
            right.plot(share, row["lowest accuracy"], "o", color=colour, alpha=0.8)
    left.set(xlabel="% of the training", ylabel="training loss")
    right.set(xlabel="plateau left after % of the training", ylabel="lowest validation accuracy at the end, %")
    lines = [Line2D([], [], color=f"C{i % 10}", label=model) for i, model in enumerate(models)]
    figure.legend(handles=lines, fontsize=8, loc="lower center", ncols=min(4, len(lines)))
    figure.tight_layout(rect=(0, 0.06 + 0.04 * (len(lines) // 4), 1, 1))
    return figure
