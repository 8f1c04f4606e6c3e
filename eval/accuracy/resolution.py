"""How accurate are models at resolutions that they were not trained at?

Columns: `model`, `resolution` (pixels), `tokens`, `accuracy`, `low` and `high` (%, with its 95 % interval by Wilson
over the images), `images`, `split` (test, val or train), `majority baseline` (% of the most frequent class),
`trained at` (pixels), and with `--views` of videos `views`. Models of several labels have `average_precision` in place
of the accuracy, and those of numbers `r2`, with 95 % intervals by the bootstrap over images, and then `mae` with
`mae low` and `mae high`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from eval import checkpoints
from eval.accuracy.reports import RESOLUTION
from eval.evaluations import Evaluation
from eval.report import Row
from eval.tables import result_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval resolution`."""
    checkpoints.add_arguments(parser, views=True)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model and resolution."""
    yield from checkpoints.accuracies(checkpoints.load_models(options, values=True), options, device)


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, RESOLUTION, line=result_line)
