"""What is each part of a recipe worth: models with one thing changed at a time, beside the baseline recipe.

The difference of a changed model to the baseline is taken seed by seed, at the same images. Its interval is Student's
over the seeds. A seed decides the initial weights, the order and augmentation of the images, and the random features.

Columns: those of `eval resolution`, `reference` (name of the baseline recipe) and `difference` (percentage points to
the reference of the same seed; or the difference of `average_precision` or `r2`, and then `mae difference`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from eval import checkpoints
from eval.accuracy import resolution
from eval.accuracy.reports import ABLATION
from eval.columns import columns_of, measures_of
from eval.evaluations import Evaluation
from eval.report import Row
from eval.seeds import seed_of, without_seed
from eval.tables import result_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval ablation`."""
    resolution.add_arguments(parser)
    parser.add_argument(
        "--reference", default="recipe", help="the model that all others are compared with (default: %(default)s)"
    )


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield the rows of `eval resolution`, with the difference to the reference of the same seed."""
    models = checkpoints.load_models(options, values=True)
    names = [trained.name for trained in models]
    seeds = {seed_of(name) for name in names if without_seed(name) == options.reference}
    without_reference = [name for name in names if seed_of(name) not in seeds]
    if without_reference:
        known = ", ".join(sorted(set(map(without_seed, names))))
        raise ValueError(
            f"no checkpoint of {options.reference!r} has the seed of {without_reference[0]}: add it, or say with "
            f"--reference which of {known} the others differ from."
        )
    models.sort(key=lambda trained: without_seed(trained.name) != options.reference)  # the reference comes first
    references: dict[tuple[int | None, int], Row] = {}
    for row in checkpoints.accuracies(models, options, device):
        reference = references.setdefault((seed_of(row["model"]), row["resolution"]), row)
        differences: dict[str, float] = {}
        for measure in measures_of(row):
            differences |= columns_of(measure, {"difference": row[measure.name] - reference[measure.name]})
        yield {**row, "reference": options.reference, **differences}


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, ABLATION, line=result_line)
