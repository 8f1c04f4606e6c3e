"""What does an intervention on a trained model do to its accuracy at each resolution?

An intervention that restores accuracy shows the cause of its loss. Nothing is trained.

Columns: `model`, `intervention` (`as trained`, or its title), `resolution` (pixels), `accuracy`, `low` and `high` (%),
`images`, `split`, `majority baseline` (%), `trained at` (pixels).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

import torch

from eval import checkpoints
from eval.attention.interventions import GROUPS, interventions
from eval.attention.reports import INTERVENE, UNTOUCHED
from eval.evaluations import Evaluation
from eval.model_changes import Intervention, changed
from eval.report import Row
from eval.tables import line_of
from eval.values import result_columns
from train.testing import measure_images
from train.utils.progress import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval intervene`."""
    checkpoints.add_arguments(parser, images=200)
    parser.add_argument("--groups", nargs="+", choices=tuple(GROUPS), default=list(GROUPS), help="default: all")


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model, intervention and resolution."""
    for trained in checkpoints.load_models(options):
        vit = trained.classifier.vit
        if left_out := [group for group in options.groups if not interventions(vit, [group])]:
            sys.stderr.write(f"{trained.name}: left out, as they do not apply to it: {', '.join(left_out)}\n")
        by_title: dict[str, Intervention] = {UNTOUCHED: lambda vit, changes: None}
        by_title |= interventions(vit, options.groups)
        todo = [(title, size) for title in by_title for size in options.resolutions]
        costs = [math.prod(vit.grid(*size)) for _, size in todo]
        for title, size in progress(todo, trained.name, costs=costs, only_lines=True):
            with changed(vit, by_title[title]):
                shown = f"{trained.name} at {size}, {title}"
                answers = measure_images(trained, size, options.split, options.images, device, shown).answers
            yield {
                "model": trained.name,
                "intervention": title,
                "resolution": size,
                **result_columns(trained, answers, options.split),
            }


EVALUATION = Evaluation(
    __doc__, add_arguments, evaluate, INTERVENE, line=line_of(("model", "intervention", "resolution"), "accuracy")
)
