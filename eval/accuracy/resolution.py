"""How accurate are models at resolutions that they were not trained at?

Columns: `model`, `resolution` (pixels), `tokens`, `accuracy`, `low` and `high` (%, with its 95 % interval by Wilson
over the images), `images`, `split` (test or val), `majority baseline` (% of the most frequent class), `trained at`
(pixels).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from eval.accuracy.resolution_report import plot as plot
from eval.accuracy.resolution_report import summary as summary
from eval.checkpoints import accuracies, add_arguments, load_models
from eval.report import Row

__all__ = ["add_arguments", "evaluate", "plot", "summary"]


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model and resolution."""
    yield from accuracies(load_models(options), options, device)
