"""The further files of `eval confusion`: matrices, pictures of errors, and the answer to every image."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from matplotlib.figure import Figure
from torch import Tensor

from eval.accuracy.answers import Answers
from eval.accuracy.confusion_matrix import Matrix, draw_matrix
from eval.plotting.contact_sheet import Tile, contact_sheet, fit, names_apart, shorten
from eval.plotting.options import add_title
from eval.plotting.style import save_plot
from eval.report import Row, write_csv
from eval.tables import counted

FULL_ROWS, TOP = 100, 5  # up to FULL_ROWS classes every probability is written, above that the TOP highest
NAME = 13  # most letters of a model's name beside its answer


def matrix_of(answers: Answers) -> Matrix:
    """Return the confusion matrix of a model's answers."""
    counts = answers.confusion().numpy()
    return Matrix(answers.model, answers.size, answers.split, answers.classes, counts, answers.views)


def picture(answers: Answers, index: int) -> np.ndarray[Any, Any]:
    """Return an image as the model saw it, [H, W] or [H, W, 3]; of a video four frames, two above two."""
    image: Tensor = answers.images[index][0]
    if image.ndim == 4:  # [C, T, H, W]
        frames = image[:, torch.linspace(0, image.shape[1] - 1, 4).long()]
        image = rearrange(frames, "c (a b) h w -> c (a h) (b w)", a=2)
    return image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy()


def image_labels(answers: Answers, indices: Sequence[int]) -> list[str]:
    """Return short names of the images of a picture."""
    names = names_apart([answers.image_name(index) for index in indices])
    return [f"image {name}" if name.isdecimal() else fit(name) for name in names]


def error_sheet(answers: Answers, count: int) -> Figure:
    """Draw the most confident wrong answers."""
    tiles, indices = [], answers.most_confident_errors(count)
    for index, name in zip(indices, image_labels(answers, indices), strict=True):
        truth, answer = int(answers.targets[index]), int(answers.predicted[index])
        percent = 100 * float(answers.probabilities[index, answer])
        lines = [
            fit(answers.classes[truth], "truth: "),
            fit(answers.classes[answer], "answer: ", f" {percent:.0f} %"),
            name,
        ]
        tiles.append(Tile(picture(answers, index), "\n".join(lines)))
    errors = int((~answers.right).sum())
    some = f"the {len(tiles)} most confident of {errors} errors"
    shown = some if len(tiles) < errors else "the only error" if errors == 1 else f"all {errors} errors"
    return contact_sheet(tiles, heading=f"{answers.model} at {answers.size} px: {shown}", note=answers.note)


def answer_rows(answers: Answers) -> Iterator[Row]:
    """Yield a row for each image: path or number, split, truth, answer, whether that is right, and probabilities."""
    for index, (truth, row) in enumerate(zip(answers.targets.tolist(), answers.probabilities, strict=True)):
        values, order = (each[:TOP] for each in row.sort(descending=True, stable=True))  # of equal ones the first
        cells: dict[str, Any] = {
            "image": answers.image_name(index),
            "split": answers.split,
            "truth": answers.classes[truth],
            "answer": answers.classes[int(order[0])],
            "right": int(order[0]) == truth,
            "probability": round(float(values[0]), 6),
            "probability of truth": round(float(row[truth]), 6),
        }
        if len(row) <= FULL_ROWS:
            cells |= {f"p({name})": round(p, 6) for name, p in zip(answers.classes, row.tolist(), strict=True)}
        else:
            for rank, (label, p) in enumerate(zip(order.tolist(), values.tolist(), strict=True), 1):
                cells |= {f"class {rank}": answers.classes[label], f"probability {rank}": round(p, 6)}
        yield cells


def write_answers(
    answers: Answers, folder: Path, header: Sequence[str], options: argparse.Namespace, label: str | None
) -> list[Path]:
    """Write the matrix, the answers and the picture of errors (if any) of one model at one size.

    Args:
        answers: answers of the model.
        folder: folder of the files.
        header: comment lines of the CSV files.
        options: `format` and `title` of the pictures, and `errors`, the most images on a sheet.
        label: name of the model in the pictures; None for no pictures.
    """
    end, matrix = file_name(answers.model, answers.size), matrix_of(answers)
    tables = [folder / f"matrix-{end}.csv", folder / f"predictions-{end}.csv"]
    write_csv(tables[0], matrix.rows(), [*header, *matrix.header()])
    write_csv(tables[1], list(answer_rows(answers)), header)
    drawn = None if label is None else draw_matrix(replace(matrix, model=label))
    pictures = write_picture(drawn, tables[0], options)
    wrong = label is not None and not answers.right.all()
    errors = error_sheet(replace(answers, model=str(label)), options.errors) if wrong else None
    return sorted([*tables, *pictures, *write_picture(errors, folder / f"errors-{end}.csv", options)])


def names_beside(models: Sequence[str]) -> list[str]:
    """Return short, distinct names of models, without their common prefix where it would make them too long."""
    if max(map(len, models)) > NAME:
        same = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*models, strict=False))
        alike = "".join(letters[0] for letters in same)
        models = [model[1 + max(map(alike.rfind, "-_: /")) :] for model in models]
    return [shorten(model, NAME) for model in models]


def difference_sheet(one: Answers, other: Answers, count: int) -> Figure:
    """Draw images on which only one of two models is right, in descending order of the difference."""
    truth = one.targets[:, None]
    gaps = (one.probabilities.gather(1, truth) - other.probabilities.gather(1, truth))[:, 0].abs()
    differing = (one.right != other.right).nonzero()[:, 0]
    tiles, indices = [], differing[gaps[differing].argsort(descending=True, stable=True)][:count].tolist()
    for index, name in zip(indices, image_labels(one, indices), strict=True):
        lines = [fit(one.classes[int(one.targets[index])], "truth: ")]
        for answers, model in zip((one, other), names_beside([one.model, other.model]), strict=True):
            lines.append(fit(one.classes[int(answers.predicted[index])], f"{model}: "))
        tiles.append(Tile(picture(one, index), "\n".join([*lines, name])))
    on = counted(len(differing), "image")
    heading = f"{one.model} and {other.model} at {one.size} px: only one is right on {on}"
    heading += f"; these {len(tiles)} differ most" if len(tiles) < len(differing) else ""
    return contact_sheet(tiles, heading=heading, note=one.note)


def write_differences(
    one: Answers, other: Answers, folder: Path, options: argparse.Namespace, labels: Mapping[str, str]
) -> list[Path]:
    """Write the picture of images on which only one of two models is right, if there are any.

    Args:
        one, other: answers of the models.
        folder: folder of the files.
        options: the options of `write_answers`.
        labels: labels of the models that have pictures, by name.
    """
    figure = None
    if {one.model, other.model} <= labels.keys() and not one.right.equal(other.right):
        first, second = (replace(answers, model=labels[answers.model]) for answers in (one, other))
        figure = difference_sheet(first, second, options.errors)
    return write_picture(figure, folder / f"differ-{file_name(one.model, other.model, one.size)}.csv", options)


def file_name(*parts: object) -> str:
    """Return the parts joined as a file name; the name of a model may be `RUN:best` or `FOLDER/RUN`."""
    return "-".join(str(part) for part in parts).replace(":", "-").replace("/", "-")


def write_picture(figure: Figure | None, beside: Path, options: argparse.Namespace) -> list[Path]:
    """Write a picture in each format with its title, and return the files; for None remove older files."""
    if figure is not None:
        add_title(figure, options.title)
    return save_plot(figure, beside, options.format)
