"""Draw images of a generated task: `python -m train.data.draw arrow --ink 150 --out arrow.png`.

Draws a contact sheet of training images, each with its class; or with `--example N` one image as a model sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentParser
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from PIL import Image

from performer_string.utils.files import write_aside
from train.data.generated import GeneratedDataset, GeneratedTask, size_of
from train.data.sizes import Size
from train.data.tasks import TASKS
from train.utils.errors import one_message

SIZES = {  # as in their recipes
    "arrow": "108",
    "moving_arrow": "8x72x72",
    "pathfinder": "32",
    "marked_contours": "32",
    "cells": "96",
}
ROWS, COLUMNS = 3, 4  # numbers of rows and columns of a sheet
LABELS = ListedColormap(["black", "#0072b2", "#e69f00"])  # the classes of a dense task


def show(axes: Axes, image: Any, title: str = "", **options: Any) -> None:
    """Draw an image, white on black as a model sees it, without ticks."""
    axes.imshow(image, **(options or {"cmap": "gray", "vmin": 0, "vmax": 255}))
    axes.set_title(title, fontsize=9)
    axes.set(xticks=[], yticks=[])


def contact_sheet(task: GeneratedTask, size: Any) -> Figure:
    """Return a figure of training images: with their classes, with their label maps, or with a frame of each step."""
    if task.axes == 3:
        data, steps = GeneratedDataset(task, size, ROWS, "train"), size[0] // task.hold  # type: ignore[attr-defined]
        figure = Figure(figsize=(2.0 * steps, 2.2 * ROWS), layout="constrained")
        for axes, (video, label) in zip(figure.subplots(ROWS, steps, squeeze=False), data, strict=True):
            for step, axis in enumerate(axes):
                show(axis, video[0, step * task.hold], f"step {step + 1}")  # type: ignore[attr-defined]
            axes[0].set_ylabel(task.classes[label], fontsize=9)
        return figure
    figure = Figure(figsize=(2.2 * COLUMNS, 2.4 * ROWS), layout="constrained")
    axes = figure.subplots(ROWS, COLUMNS).flat
    if task.head == "dense":
        for left, right, (image, labels) in zip(
            axes[::2], axes[1::2], GeneratedDataset(task, size, ROWS * COLUMNS // 2, "train"), strict=True
        ):
            show(left, image[0])
            show(right, labels, f"orange: {task.classes[-1]}", cmap=LABELS, vmin=0, vmax=2)
        return figure
    for axis, (image, label) in zip(axes, GeneratedDataset(task, size, ROWS * COLUMNS, "train"), strict=True):
        show(axis, image[0], task.classes[label])
    return figure


def write_example(task: GeneratedTask, size: Any, split: str, index: int, path: Path) -> str:
    """Write one image as a model sees it, pixel by pixel, and return a message with its class.

    Raises:
        ValueError: an index below 0, a video, or a path without the ending .png.
    """
    if index < 0:
        raise ValueError(f"--example is the number of an image, 0 or more, not {index}.")
    if path.suffix.lower() != ".png" or task.axes == 3:
        raise ValueError(f"--example writes an image as PNG: end --out in .png, not {path.suffix}, and name no video.")
    image, label = GeneratedDataset(task, size, index + 1, split)[index]
    with write_aside(path) as partial:
        Image.fromarray(image[0].numpy()).save(partial, format="PNG")
    return "" if task.head == "dense" else task.classes[label]


def make_parser() -> ArgumentParser:
    """Return the parser, with a command for each task that takes the options of the task."""
    parser = ArgumentParser(prog="python -m train.data.draw", description="Draw images of a generated task.")
    commands = parser.add_subcommands(dest="task")
    for name, kind in TASKS.items():
        command = ArgumentParser(description=f"Draw images of the task {name}.")
        sizes = "side in pixels; for videos frames x height x width"
        command.add_argument("--resolution", default=SIZES[name], type=str, help=sizes)
        command.add_argument("--example", type=int | None, default=None, help="write only this image, 0, 1, ...")
        split = "split of --example; a contact sheet has training images"
        command.add_argument("--split", type=Literal["train", "val", "test"], default="test", help=split)
        command.add_argument("--out", type=str, default=f"{name}.png", help="file; its ending sets the format")
        command.add_class_arguments(kind)
        commands.add_subcommand(name, command)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw images of a task, from the command line."""
    with one_message():
        parsed = make_parser().parse_args(arguments)
        chosen, kind = parsed[parsed.task], TASKS[parsed.task]
        task = kind(**{field.name: chosen[field.name] for field in fields(kind)})  # type: ignore[arg-type]
        path, size = Path(chosen.out), size_of(task, Size.of(chosen.resolution))
        if not path.suffix:
            raise ValueError(f"--out needs an ending that says the format, like {path}.png.")
        if chosen.example is not None:
            print(f"{path}: {write_example(task, size, chosen.split, chosen.example, path)}")
            return
        figure = contact_sheet(task, size)
        with write_aside(path) as partial:
            figure.savefig(partial, dpi=100)
    classes, baseline = ", ".join(task.classes), f"{task.majority_accuracy():.1%}"
    print(f"{path}: drawn by our generator. Classes: {classes}. Majority baseline: {baseline}")


if __name__ == "__main__":
    main()
