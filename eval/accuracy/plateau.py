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
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tqdm import tqdm

from eval.accuracy.plateau_report import ACCURACY, SHOWN
from eval.evaluations import Evaluation
from eval.report import Row
from eval.training_log import has_log, read_log
from train.runs.folder import METRICS

LOSS = "train/loss"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval plateau`."""
    runs: dict[str, Any] = {"action": "extend", "type": Path, "metavar": "RUN"}
    parser.add_argument("run", nargs="*", default=[], help="folders of runs; other paths are skipped", **runs)
    parser.add_argument("--run", nargs="+", help="the same", **runs)
    parser.add_argument("--threshold", type=float, default=0.5, help="loss below which the plateau counts as left")
    parser.add_argument("--window", type=int, default=5, help="number of logged losses in the running mean")


def first_step_below(steps: Sequence[int], losses: Sequence[float], threshold: float, window: int) -> int | None:
    """Return the first step at which the mean of the last `window` losses is below a threshold; None for never."""
    for end in range(window, len(losses) + 1):
        if fmean(losses[end - window : end]) < threshold:
            return steps[end - 1]
    return None


def with_logs(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of runs among paths, and report the skipped paths; a single path is never skipped."""
    runs = [path for path in paths if has_log(path)]
    skipped = [str(path) for path in paths if path not in runs and path.exists()]
    if runs and skipped:
        tqdm.write(f"Skipped, because they have no log: {', '.join(skipped)}", file=sys.stderr)
    return [path for path in paths if path in runs or not path.exists()] if runs else list(paths)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each run."""
    if not options.run:
        raise ValueError("no run is named: python -m eval plateau RUN ..., with the folders of training runs.")
    if options.window < 1:
        raise ValueError(f"--window must be 1 or more, not {options.window}.")
    for run in tqdm(with_logs(options.run), desc="runs", leave=False, disable=None):
        logged = read_log(run)
        if LOSS not in logged:
            raise ValueError(f"{run} has logged no {LOSS}.")
        steps, losses = logged[LOSS].steps, logged[LOSS].values
        accuracies = [scalar.values[-1] for tag, scalar in logged.items() if tag.startswith("val/accuracy")]
        left = first_step_below(steps, losses, options.threshold, options.window)
        yield {
            "run": run.absolute().name,  # a name for "." too
            "finished": (run / METRICS).is_file(),
            "steps": max(scalar.steps[-1] for tag, scalar in logged.items() if tag == LOSS or tag.startswith("val/"))
            + 1,
            "left the plateau at step": "" if left is None else left,
            ACCURACY: round(100 * min(accuracies), 2) if accuracies else "",
            "window": options.window,
            "losses": " ".join(f"{step}:{loss:.3g}" for step, loss in zip(steps, losses, strict=True)),
        }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN, on_cpu=True)
