"""Test a trained model, and write its folder with a model card."""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from performer_string import ModelDetails, ViT
from performer_string.models.files.checkpoint import CheckpointError
from performer_string.models.files.hub import check_repository
from performer_string.models.files.paths import CARD, CONFIG, WEIGHTS, find_checkpoint, is_published
from performer_string.models.files.weights import round_weights, safetensors
from performer_string.utils.files import check_writable
from train.checkpoint import Trained, load_trained
from train.checkpoint_file import read_checkpoint
from train.data.module import ImageData
from train.data.sizes import Size
from train.data.tasks import TASKS
from train.measures import MEASURES
from train.pixels import confusions, mean_iou_with_interval
from train.runs.environment import code, machine, versions
from train.runs.folder import BEST, CHECKPOINTS, LAST, run_of
from train.runs.folder import CONFIG as RUN_CONFIG
from train.runs.recorded import (
    accuracy,
    dense_cells,
    interval_cells,
    recorded_imports,
    trained_by,
    training_of,
    unfinished,
    validated_metrics,
)
from train.testing import count_right, measure_images


def choose(run: Path, best: bool) -> tuple[Path, Path]:
    """Return the checkpoint to publish, and the folder of its run.

    Raises:
        CheckpointError: no checkpoint of a run.
    """
    path = run.expanduser() / CHECKPOINTS / BEST if best else find_checkpoint(run)
    if is_published(path):
        raise CheckpointError(f"{run} is published already: copy it.")
    return path, run_of(path.absolute()) or path.absolute().parent


def check_free(folder: Path, overwrite: bool) -> None:
    """Raise an error for a folder that cannot be written to, is of a run, or has such files, unless `overwrite`."""
    check_writable("DIR", folder)
    if (folder / RUN_CONFIG).is_file() or next(folder.glob("*.ckpt"), None):
        raise FileExistsError(f"{folder} holds a run or its checkpoints: a model is published in a folder of its own.")
    there = [name for name in (WEIGHTS, CONFIG, CARD) if (folder / name).exists()]
    if there and not overwrite:
        raise FileExistsError(
            f"{folder} holds {', '.join(there)}: choose another folder, or replace it by --overwrite."
        )


def measure(trained: Trained, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Return the accuracies of a model on test images, with intervals.

    Raises:
        FileNotFoundError: missing test images.
    """
    data, metrics = trained.data, []
    try:
        data.setup("test")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}\nOr publish without figures on test images: --skip_test.") from error
    for size in options.resolutions or data.sizes():
        tokens = math.prod(trained.classifier.vit.grid(*size))
        row: dict[str, Any] = {"split": "test", "resolution": str(size), "tokens": tokens}
        if data.head == "dense":
            counts = confusions(trained, size, "test", options.images, device, f"test at {size}")
            pixels = counts.sum(0)
            right = float(pixels.diagonal().sum() / pixels.sum())
            mean, low, high = mean_iou_with_interval(counts)
            row |= {**dense_cells(right, mean / 100), "low": round(low, 4), "high": round(high, 4)}
            metrics.append({**row, "images": len(counts)})
            print(f"{size} px: mIoU {mean:.1f} % ({low:.1f}-{high:.1f}) of {len(counts)} images", flush=True)
            continue
        if data.outputs != "class":
            answers = measure_images(trained, size, "test", options.images, device, f"test at {size}").answers.numpy()
            for measure in MEASURES[data.outputs]:
                value, low, high = measure.interval(answers)
                metrics.append({**row, **interval_cells(measure.name, (value, low, high)), "images": len(answers)})
                text = f"{measure.name} {value:.4g} ({low:.4g}-{high:.4g})"
                print(f"{size} px: {text} of {len(answers)} images", flush=True)
            continue
        correct, total = count_right(trained, size, "test", options.images, device, f"test at {size}")
        row |= accuracy(correct / total, total)
        metrics.append({**row, "majority baseline": round(100 * data.majority_accuracy("test"), 4)})
        print(f"{size} px: {row['accuracy']:.1f} % ({row['low']:.1f}-{row['high']:.1f}) of {total} images", flush=True)
    return metrics


def publish(options: argparse.Namespace) -> tuple[ViT, ModelDetails]:
    """Test a model and write its folder; return the model and the details on its card."""
    path, run = choose(options.run, options.best)
    check_free(options.folder.expanduser(), options.overwrite)
    content = read_checkpoint(path)
    if not_finished := unfinished(path.absolute(), content):
        sys.stderr.write(f"{not_finished}\n")
    command, environment = trained_by(run)
    which = {BEST: ", the best in validation", LAST: ", the last"}.get(path.name, "")
    environment = [f"step {content.get('global_step')}{which}", *environment]
    config = content["ImageData"]["config"]
    vit = ViT.from_checkpoint(path).to(getattr(torch, options.dtype))
    validated = validated_metrics(run, path, content)
    details = ModelDetails(
        name=options.name or re.sub(r"[^\w.-]", "-", options.folder.absolute().name),
        dataset=options.dataset or f"source `{config['source']}`",
        licence=options.licence,
        command=command,
        environment=environment,
        metrics=[{**row, "tokens": math.prod(vit.grid(*Size.of(row["resolution"])))} for row in validated],
        limits=[not_finished, *options.limits] if not_finished else options.limits,
        imports=list(dict.fromkeys([*recorded_imports(run), *options.imports])),
        training=training_of(content),
    )
    if options.round:
        round_weights(vit)
        environment.append("weights rounded to bfloat16 after validation, and computed in float32")
    if config["source"] in TASKS:  # old checkpoints do not store the names of their classes
        vit.preprocessing = ImageData.from_checkpoint(content["ImageData"]).preprocessing()
    if not options.skip_test:
        with tempfile.TemporaryDirectory() as folder:
            trained = load_trained(vit.save_pretrained(folder, replace(details, name="model")))  # as others load it
            trained.data.root = options.root or config["root"]
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            tested = measure(trained, options, device)
        measured = f"tested with {code()}, on {machine(device)}, {versions()}"
        details = replace(details, metrics=[*tested, *details.metrics], environment=[*environment, measured])
    vit.save_pretrained(options.folder, details, replace_card=options.overwrite)
    return vit, details


def check_packages(push: str | None) -> None:
    """Raise a ValueError for a missing package or a name that the Hub does not accept, before measuring."""
    try:
        safetensors()
        if push:
            check_repository(push)
    except ImportError as error:
        raise ValueError(str(error)) from error
