"""Accuracy at resolutions that a model was not trained at."""

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
from eval.report import Row, beside, save_figure, wilson
from eval.seeds import check_seeds, differing, over_seeds, stem
from train.checkpoint import Trained, load_trained
from train.data.sizes import Size, ascending
from train.files import checkpoint_of

HELP = "accuracy per resolution, with 95 %% intervals, beside the null score"


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
        trained.data.setup()
    options.resolutions = options.resolutions or ascending(size for each in models for size in each.data.sizes())
    for trained in models:
        for size in options.resolutions:
            trained.classifier.vit.grid(*size)
            trained.data.held_out(options.split, size)
    check_same_images(models, options)
    return models


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
    """An accuracy in % with its interval, and what it is to be compared with."""
    low, high = wilson(right, total)
    return {
        "accuracy": round(100 * right / total, 2),
        "low": round(100 * low, 2),
        "high": round(100 * high, 2),
        "images": total,
        "null": round(100 * trained.data.null_accuracy(split), 2),
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


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    yield from accuracies(load_models(options), options, device)


def summary(found: Sequence[Row]) -> list[Row]:
    """One row a model, all its seeds together; one column a resolution; the null score last."""
    found = over_seeds(found)
    sizes = ascending(row["resolution"] for row in found)
    models = list(dict.fromkeys(row["model"] for row in found))
    cells = {(r["model"], r["resolution"]): f"{r['accuracy']:.1f} ({r['low']:.1f}-{r['high']:.1f})" for r in found}
    lines: list[Row] = [
        {"accuracy in %": model, **{f"{size} px": cells.get((model, size), "") for size in sizes}} for model in models
    ]
    null = max(row["null"] for row in found)
    return [*lines, {"accuracy in %": "null", **{f"{size} px": f"{null:.1f}" for size in sizes}}]


def mark_training(axis: Any, found: Sequence[Row]) -> None:
    """A line at each training size."""
    for size in dict.fromkeys(row["trained at"] for row in found):
        axis.axvline(size.side, color="grey", linewidth=0.8)
        axis.annotate(" trained here", (size.side, 0.03), xycoords=("data", "axes fraction"), fontsize=8, color="grey")


def plot(found: Sequence[Row], path: Path) -> None:
    """Accuracy over resolution, the training resolution marked: of several seeds each, thin, and their mean; of one its
    interval."""
    from matplotlib.figure import Figure

    models: dict[str, list[Row]] = {}
    for row in sorted(found, key=lambda row: row["resolution"].side):
        models.setdefault(stem(row["model"]), []).append(row)
    many = len(models) > 5  # then the legend is beside the curves
    figure = Figure(figsize=(9.5, 4.8) if many else (6, 3.8), layout="constrained")
    axis = figure.subplots()
    axis.set_xscale("log", base=2)
    for number, rows in enumerate(models.values()):
        turn, aside = number // 10 % 4, 1.006 ** (number - (len(models) - 1) / 2)  # or they would lie on each other
        look: dict[str, Any] = {"color": f"C{number % 10}", "ls": ("-", "--", "-.", ":")[turn]}
        seeds, mean = list(dict.fromkeys(row["model"] for row in rows)), over_seeds(rows)
        for seed in seeds if len(seeds) > 1 else []:
            own = [row for row in rows if row["model"] == seed]
            axis.plot(
                [r["resolution"].side * aside for r in own], [r["accuracy"] for r in own], lw=0.8, alpha=0.5, **look
            )
        error = [[r["accuracy"] - r["low"] for r in mean], [r["high"] - r["accuracy"] for r in mean]]
        axis.errorbar(
            [r["resolution"].side * aside for r in mean],
            [r["accuracy"] for r in mean],
            error if len(seeds) == 1 else None,
            capsize=2,
            elinewidth=1,
            label=mean[0]["model"],
            marker="os^D"[turn],
            **look,
        )
    axis.axhline(found[0]["null"], color="grey", linestyle=":", label="null")
    mark_training(axis, found)
    sizes = ascending(row["resolution"] for row in found)
    axis.set(xlabel="resolution in pixels", ylabel="accuracy in %")
    axis.set_xticks([size.side for size in sizes], [str(size) for size in sizes])
    lowest = [row["low"] for row in over_seeds(found)] + [row["accuracy"] for row in found]
    axis.set_ylim(bottom=10 * (min(found[0]["null"], *lowest) // 10))
    if many:
        figure.legend(loc="outside right upper", fontsize=8)
    else:
        axis.legend(fontsize=8)
    save_figure(figure, path)
