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
from train.measures import ACCURACY, MEASURES, MIOU
from train.pixels import confusions, mean_iou_with_interval
from train.runs.environment import code, machine, versions
from train.runs.folder import BEST, CHECKPOINTS, LAST, run_of
from train.runs.folder import CONFIG as RUN_CONFIG
from train.runs.recorded import recorded_imports, trained_by, training_of, unfinished, validated_metrics
from train.testing import measure_images


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
    """Return the measures of a model on test images, with intervals.

    Raises:
        FileNotFoundError: missing test images.
    """
    data, metrics = trained.data, []
    try:
        data.setup("test")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}\nOr publish without figures on test images: --skip_test.") from error
    for size in options.resolutions or data.sizes():
        row = {"split": "test", "resolution": str(size), "tokens": math.prod(trained.classifier.vit.grid(*size))}
        how, more = (trained, size, "test", options.images, device, f"test at {size}"), dict[str, float]()
        if data.head == "dense":
            answers = confusions(*how)
            pixels, found = answers.sum(0), {MIOU: mean_iou_with_interval(answers)}
            more["accuracy"] = ACCURACY.rounded(100 * float(pixels.diagonal().sum() / pixels.sum()))
        else:
            answers = measure_images(*how).answers
            found = {each: each.interval(answers.numpy()) for each in MEASURES[data.outputs]}
            if data.outputs == "class":
                more["majority baseline"] = ACCURACY.rounded(100 * data.majority_accuracy("test"))
        for each, values in found.items():
            cells = {name: each.rounded(x) for name, x in zip((each.name, "low", "high"), values, strict=True)}
            metrics.append({**row, **cells, "images": len(answers), **more})
            value, low, high = (f"{x:.{each.digits}f}" for x in values)
            name, unit = "" if each is ACCURACY else f"{each.name} ", f" {each.unit}" if each.unit else ""
            print(f"{size} px: {name}{value}{unit} ({low}-{high}) of {len(answers)} images", flush=True)
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
