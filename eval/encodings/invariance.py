"""What does a translation of all positions change?

The scores of a commuting encoding are invariant. Random features are invariant in the mean over draws, but not in one
draw. All is measured in float64, at offsets that are no integers.

Columns: `part` (scores, generators, features or models), `name`, `quantity`, `value` (relative change), `expected`
(exact, fails by design, one draw, 1/sqrt(draws), not known), `holds` (whether the value is as expected).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from eval.checkpoints import add_models
from eval.encodings import translations
from eval.encodings.one_axis import measure_one_axis
from eval.encodings.reports import INVARIANCE
from eval.evaluations import Evaluation
from eval.names import names_of
from eval.report import Row
from train.checkpoint import load_trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval invariance`."""
    models = "trained models, and these alone; by default fresh ones, and encodings and feature maps by themselves"
    add_models(parser, models)
    parser.add_argument("--head-dim", type=int, default=24, help="width of a head, divisible by 12")
    parser.add_argument("--seed", type=int, default=0)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield rows for encodings, feature maps and untrained models, or for trained models alone."""
    if options.head_dim % 12:
        raise ValueError(f"--head-dim must be divisible by 12, for blocks of 2, 3 and 4, not {options.head_dim}.")
    torch.manual_seed(options.seed)
    if options.checkpoint:
        vits = [load_trained(path).classifier.vit for path in options.checkpoint]
        yield from translations.measure_models(zip(names_of(options.checkpoint), vits, strict=True))
        return
    yield from translations.measure_encodings(options.head_dim)
    yield translations.measure_wide_basis(options.head_dim)
    yield measure_one_axis(options.head_dim)
    yield from translations.measure_features(options.head_dim)
    yield from translations.measure_models(list(translations.untrained_models()))


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, INVARIANCE, on_cpu=True)
