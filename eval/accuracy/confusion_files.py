"""The further files of `eval confusion`: matrices, pictures of errors, and the answer to every image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from matplotlib.figure import Figure
from torch import Tensor

from eval.accuracy.answers import Answers
from eval.accuracy.contact_sheet import Tile, contact_sheet, fit, names_apart, shorten
from eval.plotting.style import new_figure, save_figure
from eval.report import Row, write_csv
from performer_string.utils.files import write_aside

FULL_ROWS, TOP = 100, 5  # up to so many classes every probability is written, and else those of the first TOP
NAMED, COUNTED = 60, 20  # up to so many classes the matrix has their names, and its cells their numbers


def matrix_rows(answers: Answers) -> list[Row]:
    """Return the confusion matrix as rows: a class, and the number of its images with each answer."""
    counts = answers.confusion().tolist()
    return [
        {"truth \\ answer": name, **dict(zip(answers.classes, line, strict=True))}
        for name, line in zip(answers.classes, counts, strict=True)
    ]


def draw_matrix(answers: Answers) -> Figure:
    """Draw the confusion matrix in % of each class, with counts where they fit."""
    counts = answers.confusion()
    share = 100 * counts / counts.sum(1, keepdim=True).clamp(min=1)
    total = len(answers.classes)
    side = min(9.0, 1.6 + 0.3 * total)
    figure = new_figure(side + 0.8, side)
    axis = figure.subplots()
    image = axis.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=100)
    axis.grid(visible=False)
    if total <= NAMED:
        names = [shorten(name, 22) for name in answers.classes]
        axis.set_xticks(range(total), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axis.set_yticks(range(total), names)
    if total <= COUNTED:
        for i, j in np.ndindex(total, total):
            if counts[i, j]:
                dark = float(share[i, j]) > 60
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6}
                axis.text(j, i, str(int(counts[i, j])), color="white" if dark else "black", **style)
    axis.set(xlabel="answer", ylabel="truth", title=f"{answers.model} at {answers.size} px")
    colours = figure.colorbar(image, ax=axis, shrink=0.8)
    colours.set_label("% of the images of a class")
    return figure


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
    return contact_sheet(tiles, heading=f"{answers.model} at {answers.size} px: {shown}")


def answer_rows(answers: Answers) -> Iterator[Row]:
    """Yield a row for each image: its path or number, truth, answer, whether that is right, and probabilities."""
    for index, (truth, row) in enumerate(zip(answers.targets.tolist(), answers.probabilities, strict=True)):
        values, order = row.topk(min(TOP, len(row)))
        cells: dict[str, Any] = {
            "image": answers.image_name(index),
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


def write_answers(answers: Answers, folder: Path, header: Sequence[str], errors: int) -> list[Path]:
    """Write the matrix, the answers and, where there are any, the errors of one model at one size.

    Args:
        answers: of the model.
        folder: where to.
        header: lines of comment of the CSV files.
        errors: how many images the picture of the errors shows at most.
    """
    end = file_name(answers.model, answers.size)
    tables = {
        folder / f"matrix-{end}.csv": matrix_rows(answers),
        folder / f"predictions-{end}.csv": list(answer_rows(answers)),
    }
    for path, rows in tables.items():
        write_csv(path, rows, header)
    matrix, sheet = folder / f"matrix-{end}.png", folder / f"errors-{end}.png"
    write_figure(draw_matrix(answers), matrix)
    written = [*tables, matrix]
    sheet.unlink(missing_ok=True)  # of the same command before
    if not answers.right.all():
        write_figure(error_sheet(answers, errors), sheet)
        written.append(sheet)
    return sorted(written)


def difference_sheet(one: Answers, other: Answers, count: int) -> Figure:
    """Draw images on which one of two models is right alone, those of the greatest difference first."""
    truth = one.targets[:, None]
    gaps = (one.probabilities.gather(1, truth) - other.probabilities.gather(1, truth))[:, 0].abs()
    differing = (one.right != other.right).nonzero()[:, 0]
    tiles, indices = [], differing[gaps[differing].argsort(descending=True, stable=True)][:count].tolist()
    for index, name in zip(indices, image_labels(one, indices), strict=True):
        lines = [fit(one.classes[int(one.targets[index])], "truth: ")]
        for answers in (one, other):
            answer = one.classes[int(answers.predicted[index])]
            lines.append(fit(answer, f"{shorten(answers.model, 13)}: "))
        tiles.append(Tile(picture(one, index), "\n".join([*lines, name])))
    on = "1 image" if len(differing) == 1 else f"{len(differing)} images"
    heading = f"{one.model} and {other.model} at {one.size} px: only one is right on {on}"
    heading += f"; these {len(tiles)} differ most" if len(tiles) < len(differing) else ""
    return contact_sheet(tiles, heading=heading)


def write_differences(one: Answers, other: Answers, folder: Path, errors: int) -> list[Path]:
    """Write the picture of images on which one of two models is right alone, where there are any."""
    path = folder / f"differ-{file_name(one.model, other.model, one.size)}.png"
    path.unlink(missing_ok=True)  # of the same command before
    if one.right.equal(other.right):
        return []
    write_figure(difference_sheet(one, other, errors), path)
    return [path]


def file_name(*parts: object) -> str:
    """Return a part of a file's name; that of a model may be `RUN:best`."""
    return "-".join(str(part).replace(":", "-") for part in parts)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    with write_aside(path) as partial:
        save_figure(figure, partial)
