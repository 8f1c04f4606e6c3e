"""The models that an evaluation is given, the images and sizes that they are tested on, and how many they get right."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.arguments import Once, count, pixels
from eval.report import Row, beside, wilson
from eval.seeds import check_seeds, differing
from train.checkpoint import Trained, load_trained
from train.data.sizes import Size, ascending
from train.run_folder import checkpoint_of


def add_arguments(parser: argparse.ArgumentParser, split: str = "test", images: int = 0) -> None:
    models = "one or more checkpoints, or folders of runs, for the last checkpoint of each"
    parser.add_argument("--checkpoint", nargs="+", type=checkpoint_of, required=True, help=models)
    sizes = "of the images in pixels: 168, or 96x128 (height x width); those of the training's validation by default"
    parser.add_argument("--resolutions", nargs="+", type=pixels, action=Once, help=sizes)
    parser.add_argument(
        "--positions", choices=("extrapolate", "interpolate"), help="as the model was trained by default"
    )
    default = "(default: %(default)s)"
    parser.add_argument("--split", choices=("test", "val"), default=split, help=f"choose models on val only {default}")
    parser.add_argument(
        "--images",
        type=count,
        default=images,
        help=f"how many, the same for every model; 0 for all (arrow task: as in validation) {default}",
    )
    parser.add_argument("--root", help="where the images are, if not where they were in training")


def name_of(path: Path) -> str:
    """A run's name: `runs/NAME/checkpoints/best.ckpt` is NAME."""
    path = path.absolute()  # the name of a run that is "." too
    return path.parents[1].name if path.parent.name == "checkpoints" else path.stem


def result_directory(options: argparse.Namespace) -> Path:
    """`results` of the run, of the folder of runs where there are several."""
    first: Path = options.checkpoint[0]
    if first.parent.name != "checkpoints":
        return first.parent / "results"
    return beside(first.parents[1], len(options.checkpoint) > 1)


def load_models(options: argparse.Namespace) -> list[Trained]:
    """The models of the checkpoints; what cannot be evaluated is said before anything is."""
    chosen = {} if options.positions is None else {"positions": options.positions}
    names = [name_of(path) for path in options.checkpoint]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two checkpoints have the same name, so that their rows would mix: {', '.join(twice)}. Evaluate them one "
            f"after the other, with an --out for each, or rename the folder of one."
        )
    models = [load_trained(path, **chosen) for path in options.checkpoint]
    check_seeds({name: trained.settings for name, trained in zip(names, models, strict=True)})
    for trained in models:
        trained.data.root = options.root or trained.data.root
        trained.data.setup("test" if options.split == "test" else None)
        check_classes(trained)
    options.resolutions = options.resolutions or ascending(size for each in models for size in each.data.sizes())
    for trained in models:
        for size in options.resolutions:
            try:
                trained.classifier.vit.grid(*size)
                trained.data.held_out(options.split, size)
            except ValueError as error:
                raise ValueError(f"{name_of(trained.path)}: {error}") from None
    check_same_images(models, options)
    return models


def check_classes(trained: Trained) -> None:
    """An error where a model trained elsewhere, which has no names of its classes, has another number of them."""
    ours, theirs = trained.classifier.vit.config.num_classes, trained.data.num_classes
    if ours != theirs:
        raise ValueError(
            f"{name_of(trained.path)} has {ours} classes, and the images under {trained.data.root} have {theirs}."
        )


def check_same_images(models: Sequence[Trained], options: argparse.Namespace) -> None:
    """An error where models would be tested on different images, in one table and beside one null score."""
    size = options.resolutions[0]
    first: dict[str, Any] = {}
    for trained in models:
        held_out: Any = trained.data.held_out(options.split, size, options.images)
        own = {**trained.data.drawn_from(options.split), "images": len(held_out)}
        first = first or own
        if differ := differing(first, own):
            raise ValueError(
                f"{name_of(models[0].path)} and {name_of(trained.path)} would be tested on different images ("
                + "; ".join(f"{key}: {first.get(key)} and {own.get(key)}" for key in differ)
                + "): evaluate them one after the other, with an --out for each."
            )
    if options.images > first["images"]:
        sys.stderr.write(f"There are {first['images']} images, not {options.images}: all of them are taken.\n")


def batches(
    trained: Trained, size: Size, options: argparse.Namespace, device: torch.device, title: str = ""
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images on the device and their classes, in batches of about as many tokens as in training."""
    vit, data = trained.classifier.vit, trained.data
    images = data.held_out(options.split, size, options.images)
    tokens, trained_tokens = [h * w for h, w in (vit.grid(*size), vit.train_grid)]
    batch_size = max(1, data.batch_size * trained_tokens // max(tokens, trained_tokens))
    title = f"{name_of(trained.path)} at {size}{title}"
    for batch, targets in tqdm(data.loader(images, batch_size), desc=title, leave=False, disable=None):
        yield data.normalise(batch.to(device)), targets


@torch.inference_mode()
def accuracy(
    trained: Trained, size: Size, options: argparse.Namespace, device: torch.device, title: str = ""
) -> tuple[int, int]:
    """(right, total) at one size."""
    vit = trained.classifier.vit.to(device)
    right = total = 0
    for images, targets in batches(trained, size, options, device, title):
        right += int((vit(images).argmax(-1).cpu() == targets).sum())
        total += len(targets)
    return right, total


def score(trained: Trained, right: int, total: int, split: str) -> Row:
    """An accuracy in % with its interval, and what it is to be compared with; of more digits than are shown, so that
    nothing is rounded twice."""
    low, high = wilson(right, total)
    return {
        "accuracy": round(100 * right / total, 4),
        "low": round(100 * low, 4),
        "high": round(100 * high, 4),
        "images": total,
        "null": round(100 * trained.data.majority_accuracy(split), 4),
        "trained at": Size.of(trained.data.size),
    }


def accuracies(models: Sequence[Trained], options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """A row for each model and resolution."""
    for trained in models:
        for size in options.resolutions:
            right, total = accuracy(trained, size, options, device)
            vit = trained.classifier.vit
            yield {
                "model": name_of(trained.path),
                "resolution": size,
                "tokens": math.prod(vit.grid(*size)),
                **score(trained, right, total, options.split),
            }
