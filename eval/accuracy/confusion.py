"""Which classes does a model confuse, and where do two models differ?

Beside the CSV file is the folder `confusion`. For each model and size it has the confusion matrix (CSV and picture),
the most confident errors (picture), and the answer to every image (CSV). Of two models it shows images on which one is
right.

Columns: `part` (class or difference), `model`, `resolution` (pixels), `split`, `class`, `images`. Of a class:
`accuracy`, `low` and `high` (%, with its 95 % interval by Wilson), `precision` (% of these answers that are right),
`taken for` and `taken for in %` (the most frequent wrong answer). Of a difference: `other` (the other model),
`both right`, `only model`, `only other`, `neither` (images), `p` (McNemar's exact test of equal accuracies). With
`--views` of videos `views`.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import torch

from eval import checkpoints
from eval.accuracy.answers import Answers, answer_images, class_statistics, differences
from eval.accuracy.confusion_files import write_answers, write_differences
from eval.accuracy.confusion_report import SHOWN
from eval.evaluations import Evaluation
from eval.plotting.options import labels_of
from eval.report import ALL_CLASSES, Row
from eval.tables import ACCURACY_LINE
from train.utils.ranges import at_least

COLUMNS = (
    *("part", "model", "resolution", "split", "class", "images", "accuracy", "low", "high", "precision", "taken for"),
    *("taken for in %", "other", "both right", "only model", "only other", "neither", "p"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval confusion`."""
    checkpoints.add_arguments(parser, views=True)
    parser.add_argument("--errors", type=at_least(1), default=24, help="images in each picture (default: %(default)s)")


def evaluate(options: argparse.Namespace, device: torch.device) -> Generator[Row, None, list[Answers]]:
    """Yield a row for each class of each model and resolution, then those of the differences to the first model.

    Returns:
        The answers of each model at each resolution, for `files`.
    """
    empty = {**dict.fromkeys(COLUMNS, ""), "split": options.split, **options.views.column}
    models = checkpoints.load_models(options)
    answers = list[Answers]()
    for trained, size in checkpoints.at_each_size(models, options):
        answers.append(answer_images(trained, size, options, device))
        columns = {"part": "class", "model": answers[-1].model, "resolution": size}
        yield from ({**empty, **columns, **row} for row in class_statistics(answers[-1]))
    for one, other in pairs(answers):
        columns = {"part": "difference", "model": one.model, "resolution": one.size, "other": other.model}
        yield from ({**empty, **columns, **row} for row in differences(one, other))
    return answers


def line(row: Row) -> str:
    """Return the line of all classes together; those of the classes are many."""
    return ACCURACY_LINE(row) if row["part"] == "class" and row["class"] == ALL_CLASSES else ""


def pairs(answers: Sequence[Answers]) -> Iterator[tuple[Answers, Answers]]:
    """Yield pairs of the answers of the first model and those of each other model to the same images."""
    for other in answers:
        one = next(each for each in answers if each.size == other.size)
        if one.model != other.model:
            yield one, other


def files(rows: Sequence[Row], answers: Sequence[Answers], options: argparse.Namespace, csv: Path) -> list[Path]:
    """Write matrices, errors, answers and differences to the folder `confusion`."""
    folder, written = csv.with_suffix(""), list[Path]()
    header = [line.removeprefix("# ") for line in csv.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    labels = labels_of(list(dict.fromkeys(each.model for each in answers)), options)
    for each in answers:
        written += write_answers(each, folder, header, options, labels.get(each.model))
    for one, other in pairs(answers):
        written += write_differences(one, other, folder, options, labels)
    return written


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN, files=files, line=line)
