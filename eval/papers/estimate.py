"""Estimate the time of a training on this machine from a few timed steps."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from eval.papers.group import Group
from eval.speed.measure import Call, seconds
from performer_string import ViT, ViTConfig
from performer_string.models.config import patch_and_image
from train.utils.progress import progress

SIZES = {"mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "imagenette": 9_469, "imagenet": 1_281_167}
ON_CPU = 8  # images in a timed step; more would only take longer
NUMBERS = 2_500_000  # most tokens x width x layers in a timed step; larger models take fewer images, to save memory
SLOW = 2.0  # seconds of a first step above which no others are timed


def training_images(group: Group) -> float:
    """Return the number of images that a training processes, as far as the recipe determines it; else 0."""
    settings = group.settings()
    batch = int(settings.get("data.batch_size", 128))
    images = int(settings.get("data.train_size") or 0)
    if not images:
        folder = Path(str(settings.get("data.root", "data"))) / "train"
        whole = SIZES.get(group.source) or group.images or sum(1 for _ in folder.glob("*/*"))
        images = round(whole * (1 - float(settings.get("data.val_fraction", 0.1))))
    images = round(images * float(settings.get("data.train_fraction") or 1))
    limit = settings.get("trainer.limit_train_batches")
    if limit:  # number of batches, or share of them
        images = round(images * limit) if isinstance(limit, float) else min(images, limit * batch)
    steps = int(settings.get("trainer.max_steps") or -1) * int(settings.get("trainer.accumulate_grad_batches") or 1)
    epochs = int(settings.get("trainer.max_epochs") or -1)
    ends = [steps * batch] * (steps > 0) + [epochs * images] * (epochs > 0)
    return float(min(ends, default=0))


def seconds_per_image(group: Group, device: torch.device) -> float:
    """Return the time of a training step per image in seconds, without reading images."""
    from eval.speed.steps import training_step

    config = group.config()
    batch = int(group.settings().get("data.batch_size", 128)) if device.type == "cuda" else images_of_step(config)
    take_step = training_step(ViT(config), config, batch, device)
    first = own_seconds(take_step, device)  # includes initialisation, which counts for little in a slow step
    if first > SLOW:
        return first / batch
    return statistics.median(own_seconds(take_step, device) for _ in range(3)) / batch


def own_seconds(call: Call, device: torch.device) -> float:
    """Return the time of a call in seconds; on a CPU at most its processor time, which excludes other programs."""
    before = time.process_time()
    whole = seconds(call, device)
    return min(whole, time.process_time() - before) if device.type == "cpu" else whole


def images_of_step(config: ViTConfig) -> int:
    """Return the number of images in a timed step on a CPU; it is smaller for large models, to save memory."""
    patch, image = patch_and_image(config.patch_size, config.image_size)
    tokens = math.prod(size // side for size, side in zip(image, patch, strict=True))
    return max(1, min(ON_CPU, NUMBERS // (tokens * int(config.width or 1) * int(config.depth or 1))))


def estimates(groups: Sequence[Group], device: torch.device, timed: dict[str, float] | None = None) -> dict[str, float]:
    """Return the time in seconds of one training run of each group with a run left to train, by its model's name.

    Steps take random images, so that only the number of a set's images must be known; without it there is no
    estimate. For each set and kind of attention one row is timed, and its time is used for all rows. `timed` holds the
    seconds per image of models timed so far, since tables share many models.
    """
    timed = {} if timed is None else timed
    of_kind: dict[tuple[str, str], float] = {}
    images = {group.model: training_images(group) for group in groups if group.left()}
    todo = [group for group in groups if images.get(group.model)]
    for group in progress(todo, desc="timing steps"):
        kind = (group.data, group.attention)
        if kind not in of_kind:
            model = repr(group.config())
            if model not in timed:
                timed[model] = seconds_per_image(group, device)
            of_kind[kind] = timed[model]
    return {group.model: of_kind[group.data, group.attention] * images[group.model] for group in todo}


def duration(total: float) -> str:
    """Return a time as text: `40 s`, `12 min`, `3.5 h`, `2.1 days`, `40 years`."""
    for unit, length in (("years", 31_557_600.0), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if total >= length * (2 if unit in ("years", "days") else 1):
            number = total / length
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{total:.0f} s"
