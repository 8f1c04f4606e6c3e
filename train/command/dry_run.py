"""Describe a training without creating anything: data, model, operations, time and folder."""

from __future__ import annotations

import logging
import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from train.callbacks.checks import CheckData
from train.callbacks.metrics import peak_memory
from train.callbacks.summary import describe, images_of_a_step
from train.data.classes import class_names, labels_of
from train.data.image_checks import check_test_classes, sets_of
from train.data.module import ImageData
from train.runs.environment import machine
from train.utils.devices import synchronize
from train.utils.progress import clock_time

MANY_LEFT = 0.05  # share of an epoch's images outside full batches from which a hint is shown
STEPS, WARM_UP, SECONDS = 12, 2, 15.0  # most timed steps, number of them for warm-up, and longest time


class Stopwatch(Callback):
    """Time the batches of training and validation, and end the training after some steps or seconds."""

    def __init__(self) -> None:
        self.train: list[float] = []
        self.validation: dict[int, list[float]] = {}
        self.began = self.last = time.perf_counter()
        self.device = torch.device("cpu")
        self.loader: Any = None  # of training

    def lap(self, module: L.LightningModule) -> float:
        """Return the time since the last call in seconds, after synchronisation with the device."""
        synchronize(module.device)
        now = time.perf_counter()
        passed, self.last = now - self.last, now
        return passed

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.lap(module)
        self.began, self.device, self.loader = self.last, module.device, trainer.train_dataloader

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        self.train.append(self.lap(module))
        if len(self.train) >= STEPS or (len(self.train) > WARM_UP and self.last - self.began > SECONDS):
            trainer.should_stop = True

    def on_validation_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.lap(module)  # loading is not counted, since it runs in parallel

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.validation.setdefault(dataloader_idx, []).append(self.lap(module))


def open_images(module: Any, data: ImageData) -> None:
    """Open the images of a training and check them against its model, without a download."""
    data.download = False
    data.setup("fit")
    CheckData().check(data, module)


def time_batches(module: L.LightningModule, data: ImageData, settings: Mapping[str, Any]) -> Stopwatch:
    """Train for a few steps, and validate on two batches of each size, on one device with a trainer's settings."""
    common = {name: settings[name] for name in ("accelerator", "precision", "use_distributed_sampler")}
    common |= {"devices": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    common |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "callbacks": [watch := Stopwatch()]}
    of_training = ("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
    training = {name: settings[name] for name in of_training}
    with quiet():
        L.Trainer(**common, **training, limit_val_batches=0).fit(module, datamodule=data)
        if settings["limit_val_batches"] != 0:
            L.Trainer(**common, limit_val_batches=2).validate(module, datamodule=data, verbose=False)
    return watch


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's messages about its trainers and loaders."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def class_counts(dataset: Any, indices: Sequence[int] | None = None) -> str:
    """Return the number of images in each of the first twelve classes as text, for all images or those of `indices`."""
    labels, names = labels_of(dataset), class_names(dataset)
    if labels is None:
        return ""
    counts = Counter((labels if indices is None else labels[indices]).tolist())
    shown = [f"{names[n] if n < len(names) else n} {counts[n]}" for n in sorted({*counts, *range(len(names))})]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def data_lines(data: ImageData) -> list[tuple[str, str]]:
    """Return names and texts about the data: source, counts of each split, and images of each class."""
    if data.task is not None:
        sizes = f"{data.train_size} new images each epoch; {data.val_size} for validation and as many to test"
        return [("data", f"{data.source}, {data.num_classes} classes"), ("images", sizes)]
    sets = dict(sets_of(data))
    validation, held_out = data.splits().held_out("val")
    used, held = data.train_indices().tolist(), held_out.tolist()
    of = " of the training set" if data.splits().validation is None else ""
    test = f"{len(sets['test'])} to test" if "test" in sets else "none to test"
    lines = [("data", f"{data.source} in {data.root}, {data.num_classes} classes")]
    held_text = f"{len(held)}{of} for validation" if held else "none for validation"
    watched = " and at each validation" if data.watch_test and not held else ""
    lines.append(("images", f"{len(used)} to train on, {held_text}, {test}{watched}"))
    classes = {"train": class_counts(sets["train"], used)}
    classes["validation"] = class_counts(validation, held) if held else ""
    classes["test"] = class_counts(sets["test"]) if "test" in sets else ""
    return [*lines, *((f"classes, {name}", text) for name, text in classes.items() if text)]


def limited(batches: int, limit: float | None) -> int:
    """Return the number of batches under a limit: a number of them, a share, or none."""
    return min(batches, limit) if isinstance(limit, int) else max(1, int(batches * (limit or 1.0)))


def validations_of(trainer: L.Trainer, batches: float, epoch: int) -> int:
    """Return the number of validations in a training, with the one at its end.

    Args:
        trainer: trainer of the training.
        batches: number of batches in the training.
        epoch: number of batches in an epoch.
    """
    every, within = trainer.check_val_every_n_epoch, limited(epoch, trainer.val_check_interval)
    if every is None:
        return math.ceil(batches / trainer.val_check_interval)
    more = batches % (epoch * every) or epoch % within  # the last step has one of its own
    return int(batches / epoch / every) * (epoch // within) + (1 if more else 0)


def time_lines(trainer: L.Trainer, data: ImageData, watch: Stopwatch) -> list[tuple[str, str]]:
    """Return names and texts about the time of the training, estimated from the timed batches."""
    world, loader = trainer.world_size, watch.loader  # `time_batches` trains on one device
    epoch = limited(max(1, len(loader) // world), trainer.limit_train_batches)
    batch = statistics.median(watch.train[WARM_UP:] or watch.train)
    batches = math.inf
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        batches = trainer.max_epochs * epoch
    if trainer.max_steps > 0:
        batches = min(batches, trainer.max_steps * trainer.accumulate_grad_batches)
    loaders = data.val_dataloader() if watch.validation else []
    validation = sum(
        limited(math.ceil(len(loader) / world), trainer.limit_val_batches) * statistics.median(watch.validation[n])
        for n, loader in enumerate(loaders)
    )
    count = validations_of(trainer, batches, epoch) if loaders else 0
    measured = f"{batch:.3g} s" if batch >= 1 else f"{1000 * batch:.3g} ms"
    rate = data.batch_size / batch
    measured += f" a batch of {data.batch_size}{'' if world == 1 else ' on one device'}"
    measured += f", {rate:,.0f} images a second" if rate >= 10 else f", {rate:.2g} images a second"
    validations = "1 validation of" if count == 1 else f"{count} validations, each of"
    measured += f", {validations} {clock_time(validation)}" if loaders else ", no validation"
    step = images_of_a_step(trainer, data)
    return [
        ("training", epochs_line(batches / epoch, epoch, data, loader, world)),
        *([("step", f"{step}; the learning rate is not scaled by their number")] if step else []),
        ("time", f"about {clock_time(batches * batch + count * validation)} ({measured})"),
        ("memory", f"{peak_memory(watch.device):,.0f} MiB at most {memory_of(watch.device)}"),
        ("device", machine(watch.device)),
    ]


def memory_of(device: torch.device) -> str:
    """Return what `peak_memory` measures on a device, as text."""
    return "on the device, in these steps" if device.type == "cuda" else "in the process, without those that load"


def epochs_line(epochs: float, batches: int, data: ImageData, loader: Any, world: int = 1) -> str:
    """Return the number of epochs and batches, and of images that each epoch leaves out, as text.

    Args:
        epochs: number of epochs.
        batches: number of batches in an epoch.
        data: data module.
        loader: training loader of one process.
        world: number of processes.
    """
    text = f"{epochs:.3g} epoch{'' if epochs == 1 else 's'} of {batches} batch{'' if batches == 1 else 'es'}"
    text += f" of {data.batch_size}" if world == 1 else f" of {world} x {data.batch_size}"
    order = getattr(loader, "order", None)  # a subclass may have another loader
    if data.task is not None or order is None:
        return text
    taken = batches * order.step * world
    if data.repeats > 1:
        images = math.ceil(taken / data.repeats)
        return f"{text}; an epoch has {images} of {order.size} images, {data.repeats} times each"
    if (left := order.size - taken) <= 0:
        return text
    others = ", others each time" if order.shuffle else ""
    others += ": a smaller data.batch_size leaves out fewer" if left > MANY_LEFT * order.size else ""
    return f"{text}; {left} of {order.size} images {'is' if left == 1 else 'are'} left out of each epoch{others}"


def report(trainer: L.Trainer, module: Any, data: ImageData, settings: Mapping[str, Any], folder: str) -> str:
    """Return a description of a training as text, after a few of its steps.

    Args:
        trainer: trainer of the training, which is only queried.
        module: classifier, whose weights are changed.
        data: data module.
        settings: settings of the trainer.
        folder: folder of the run and its state, as text.
    """
    open_images(module, data)
    check_test_classes(data)
    lines = [*data_lines(data), ("pixels", data.pixels.describe()), ("model", describe(module.vit))]
    lines += time_lines(trainer, data, time_batches(module, data, settings))
    return "\n".join(f"{name:<15} {text}" for name, text in [*lines, ("folder", folder)])
