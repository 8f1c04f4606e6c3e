"""Load the models and images of an evaluation, and measure accuracies."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from eval.argument_types import WithoutRepetitions, task_option
from eval.models import check_counted, check_head, check_same_answers, check_views
from eval.names import names_of
from eval.report import Row
from eval.seeds import check_seeds, differing_keys
from eval.values import result_row
from performer_string.models.files.paths import find_checkpoint
from train.checkpoint import Trained, load_trained
from train.data.sizes import ONE, Size, ascending, image_size, views_of
from train.data.tasks import change_task
from train.runs.folder import CONFIG, METRICS, run_of
from train.testing import measure_images
from train.utils.progress import progress
from train.utils.ranges import at_least

if TYPE_CHECKING:
    from train.data.module import ImageData

MODEL = "run's folder (for its last checkpoint), a checkpoint, or a published folder (models/arrow-linear)"
NO_CHECKPOINTS = {".csv", ".json", ".jsonl", ".log", ".md", ".png", ".pdf", ".svg", ".tex", ".txt", ".yaml", ".yml"}


class Runs(argparse.Action):
    """Store the checkpoints among paths such as `runs/compare/*`, and report the paths that are skipped.

    Attributes:
        positional: the positional argument for the same models, not required where this option is given.
    """

    positional: argparse.Action | None = None

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        if self.positional is not None:
            self.positional.required = False
        known: dict[str, Path] = {}  # each file once
        for path in [*(getattr(namespace, self.dest) or []), *values]:
            known.setdefault(os.path.abspath(path), path)
        paths = list(known.values())
        skipped = [path for path in paths if is_no_run(path)]
        kept = [path for path in paths if path not in skipped]
        if kept and skipped:
            sys.stderr.write(f"Skipped, because they have no checkpoint: {', '.join(map(str, skipped))}\n")
        setattr(namespace, self.dest, kept or paths)


def is_no_run(path: Path) -> bool:
    """Return whether a path exists but is no checkpoint, such as the table of a sweep or an unrelated folder."""
    return path.is_dir() or (path.is_file() and path.suffix in NO_CHECKPOINTS)


def add_models(parser: argparse.ArgumentParser, optional: str = "") -> None:
    """Add the argument for models, RUN ... or --checkpoint RUN ...

    Args:
        parser: parser of the command.
        optional: help text of an evaluation that can run without models; models are required where it is empty.
    """
    models = optional or f"one or more, each a {MODEL}; others are skipped"
    options: dict[str, Any] = {"nargs": "+", "type": find_checkpoint, "action": Runs, "metavar": "RUN"}
    positional = parser.add_argument("checkpoint", help=models, **options)
    positional.required = not optional
    named = parser.add_argument("--checkpoint", help="the same", **options)
    assert isinstance(named, Runs)
    named.positional = positional


def add_arguments(parser: argparse.ArgumentParser, images: int = 0, views: bool = False) -> None:
    """Add the options that choose models and images.

    Args:
        parser: parser of the command.
        images: default of `--images`; 0 for all.
        views: whether there is an option `--views`; without it there is one view of each video.
    """
    add_models(parser)
    sizes = "sizes of the images in pixels: 168, or 96x128 (height x width); default: those of validation in training"
    parser.add_argument("--resolutions", nargs="+", type=image_size, action=WithoutRepetitions, help=sizes)
    positions = ("extrapolate", "interpolate")
    parser.add_argument("--positions", choices=positions, help="positions of patches; default: as in training")
    default = "(default: %(default)s)"
    splits = f"choose models on val only; train: training images without augmentation {default}"
    parser.add_argument("--split", choices=("test", "val", "train"), default="test", help=splits)
    parser.add_argument(
        "--images",
        type=at_least(0),
        default=images,
        help=f"number of images, the same for every model; 0 for all (generated tasks: as in validation) {default}",
    )
    parser.add_argument("--root", help="folder of the images, if not where they were in training")
    task = "options of the generated task that differ from training, as dashes=24"
    parser.add_argument("--task", nargs="+", type=task_option, default=[], metavar="NAME=VALUE", help=task)
    parser.set_defaults(views=ONE)
    if views:
        several = "views of each video, averaged to one answer: 5x3 takes five clips, each with three crops"
        parser.add_argument("--views", type=views_of, metavar="SEGMENTSxCROPS", help=f"{several} {default}")


def load_models(options: argparse.Namespace, head: str | None = "class", values: bool = False) -> list[Trained]:
    """Load the models of `--checkpoint`, and set `--resolutions` where it was not given.

    Args:
        options: options of the command line.
        head: head that all models must have; None for any, the same for all.
        values: whether models of labels or numbers are taken too.

    Raises:
        ValueError: models that cannot be evaluated, or not in one table; raised before anything is measured.
    """
    overrides = {} if options.positions is None else {"positions": options.positions}
    models = [load_trained(path, **overrides) for path in options.checkpoint]
    names = names_of(options.checkpoint, [trained.settings for trained in models])
    check_seeds({name: trained.settings for name, trained in zip(names, models, strict=True)})
    for trained, name in zip(models, names, strict=True):
        trained.name = name
        if head is not None:
            check_head(trained.classifier.vit, name, head)
        if not values:
            check_counted(trained.data.outputs, trained.path)
        check_views(trained.data.outputs, options.views)
        say_unfinished(trained)
    check_same_answers(models)
    for trained in models:
        take_root(trained.data, options.root, trained.name)
        change_task(trained.data, dict(options.task))
        try:
            trained.data.setup("test" if options.split == "test" else None)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{trained.name}, {error}") from error
        check_classes(trained)
    hint = "" if options.resolutions else " Sizes are by default those of all models: --resolutions chooses others."
    options.resolutions = options.resolutions or ascending(size for each in models for size in each.data.sizes())
    for trained, size in ((each, size) for each in models for size in options.resolutions):
        try:
            trained.classifier.vit.grid(*size)
            trained.data.held_out(options.split, size, views=options.views)
        except ValueError as error:
            raise ValueError(f"{trained.name}: {error}{hint}") from None
    check_same_images(models, options)
    return models


def say_unfinished(trained: Trained) -> None:
    """Write a line about a model whose training goes on, or was stopped."""
    run, steps = run_of(trained.path.absolute()), trained.settings["steps"]
    if run is not None and (run / CONFIG).is_file() and not (run / METRICS).is_file():
        which = f"of step {steps}" if isinstance(steps, int) else "that was the best so far"
        sys.stderr.write(f"The run {trained.name} is not finished: its checkpoint {which} is evaluated.\n")


def take_root(data: ImageData, root: str | None, name: str) -> None:
    """Read the images of the model `name` from `--root`, where it is given.

    Raises:
        ValueError: the images are generated, and have no folder.
    """
    if root and data.task is not None:
        raise ValueError(
            f"--root {root}: the images of {name} are drawn, by the task {data.source}. Leave --root out; for images "
            f"of your own there is python -m eval {'segment' if data.head == 'dense' else 'predict'}."
        )
    data.root = root or data.root


def check_classes(trained: Trained) -> None:
    """Raise a ValueError where the images and the model differ in their number of classes.

    Names of classes cannot be compared, since models trained elsewhere have none.
    """
    of_model, of_images = trained.classifier.vit.config.num_classes, trained.data.num_classes
    if of_model != of_images:
        raise ValueError(
            f"{trained.name} has {of_model} classes, and the images under {trained.data.root} have {of_images}."
        )


def check_same_images(models: Sequence[Trained], options: argparse.Namespace) -> None:
    """Raise a ValueError where the models of one table would be tested on different images."""
    size = options.resolutions[0]
    first: dict[str, Any] = {}
    for trained in models:
        held_out: Any = trained.data.held_out(options.split, size, options.images)
        images = {**trained.data.drawn_from(options.split), "images": len(held_out)}
        first = first or images
        if keys := differing_keys(first, images):
            raise ValueError(
                f"{models[0].name} and {trained.name} would be tested on different images ("
                + "; ".join(f"{key}: {first.get(key)} and {images.get(key)}" for key in keys)
                + "): evaluate them one after the other, with an --out for each."
            )
    if options.images > first["images"]:
        sys.stderr.write(f"There are {first['images']} images, not {options.images}: all of them are taken.\n")


def at_each_size(
    models: Sequence[Trained], options: argparse.Namespace, title: str = "models", only_lines: bool = True
) -> Iterator[tuple[Trained, Size]]:
    """Yield each model at each resolution, with the progress of all of them, by their numbers of tokens.

    Args:
        models: models of the command line.
        options: options with the `resolutions`.
        title: title of the progress.
        only_lines: as in `progress`.
    """
    pairs = [(trained, size) for trained in models for size in options.resolutions]
    costs = [math.prod(trained.classifier.vit.grid(*size)) for trained, size in pairs]
    yield from progress(pairs, title, costs=costs, only_lines=only_lines)


def accuracies(models: Sequence[Trained], options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row with the accuracy, or the measures in its place, of each model at each resolution."""
    for trained, size in at_each_size(models, options):
        results = measure_images(trained, size, options.split, options.images, device, views=options.views)
        yield {**result_row(trained, size, results.answers, options.split), **options.views.column}
