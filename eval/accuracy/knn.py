"""How well do the nearest training images classify an image, by the features of a frozen model?

The k-NN classifier of DINO (arXiv:2104.14294, section 4.1, and its code): each of the k training images whose features
have the largest cosine similarity s votes for its class with the weight exp(s / temperature). Nothing is trained, so
that the heads of the models, and their classes, do not matter. Training images are taken without augmentation.

Columns: `model`, `resolution` (pixels), `tokens`, `accuracy`, `low` and `high` (%, with its 95 % interval by Wilson
over the images), `images`, `split`, `majority baseline` (%), `trained at` (pixels), `features` (their number),
`training images`, `fitted at` (pixels of the training images), `k` and `temperature`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eval.accuracy.frozen import Features, add_arguments, classes_of, load_frozen, measure
from eval.accuracy.reports import KNN
from eval.evaluations import Evaluation
from eval.report import Row
from eval.tables import ACCURACY_LINE
from performer_string.utils.validation import check_positive
from train.checkpoint import Trained
from train.data.sizes import Size
from train.utils.ranges import at_least

SIMILARITIES = 2**26  # numbers that are compared at a time: 256 MiB


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval knn`."""
    add_arguments(parser)
    parser.add_argument("--k", type=at_least(1), default=20, help="number of neighbours (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.07, help="of the votes (default: %(default)s)")


def knn(fitted: Features, queries: Tensor, classes: int, k: int, temperature: float, device: torch.device) -> Tensor:
    """Return the class that the nearest neighbours of each feature vote for.

    Args:
        fitted: features of the training images.
        queries: features to classify, [M, D].
        classes: number of classes.
        k: number of neighbours; all training images where they are fewer.
        temperature: T of the weight exp(s / T) of a neighbour with cosine similarity s.
        device: device to compute on.

    Returns:
        Classes, [M], on the CPU.
    """
    known, labels = F.normalize(fitted.values, dim=1).to(device), fitted.labels.to(device)
    answers = []
    for chunk in queries.split(max(1, SIMILARITIES // len(known))):
        similar, nearest = (F.normalize(chunk, dim=1).to(device) @ known.T).topk(min(k, len(known)))
        weights = ((similar - similar[:, :1]) / temperature).exp()  # relative to the nearest, without an overflow
        votes = weights.new_zeros(len(chunk), classes).scatter_add(1, labels[nearest], weights)
        answers.append(votes.argmax(1).cpu())
    return torch.cat(answers)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model and resolution."""
    check_positive("--temperature", options.temperature)

    def classify(trained: Trained, fitted: Features, found: Features, at: Size) -> tuple[Tensor, dict[str, Any]]:
        classes = classes_of([fitted, found])
        answers = knn(fitted, found.values, classes, options.k, options.temperature, device)
        return answers, {"k": min(options.k, len(fitted.values)), "temperature": options.temperature}

    yield from measure(load_frozen(options), options, device, classify)


EVALUATION = Evaluation(__doc__, add_options, evaluate, KNN, line=ACCURACY_LINE)
