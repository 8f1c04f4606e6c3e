"""Measurements during training: gradient norm, learning rate, throughput and memory."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch.optim import Optimizer

from train.sharding import whole
from train.utils.devices import synchronize


def tensorboard(trainer: L.Trainer) -> Any:
    """Return the SummaryWriter of the run; None where there is none on this rank."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            return logger.experiment
    return None


def peak_memory(device: torch.device) -> float:
    """Return the peak memory so far in MiB: allocated memory on a GPU, resident memory of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, KiB elsewhere


def logged(trainer: L.Trainer, step: int) -> bool:
    """Return whether a step is logged."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return every > 0 and step % every == 0


class GradientNorm(Callback):
    """Log the norm of all gradients, before clipping, at each logged step and at the last of an epoch.

    A training ends with a row for its last step, which would otherwise repeat an earlier norm.
    """

    def on_before_optimizer_step(self, trainer: L.Trainer, module: L.LightningModule, optimizer: Optimizer) -> None:
        if logged(trainer, trainer.global_step + 1) or trainer.is_last_batch:
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            module.log("train/gradient_norm", whole(torch.nn.utils.get_total_norm(gradients)))


class LearningRate(Callback):
    """Log the learning rate of each step, and by name those of parameter groups with another rate.

    Groups of one name have the same rate, as the decayed and undecayed weights of a layer.
    """

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        first = groups[0]["lr"]
        module.log("train/learning_rate", first)
        others = {group.get("name", number): group["lr"] for number, group in enumerate(groups) if group["lr"] != first}
        for name, rate in others.items():
            module.log(f"train/learning_rate_{name}", rate)


class Throughput(Callback):
    """Log the images per second over all processes and the peak memory, at each logged step and the last of an epoch.

    The rate is since the one before, or since the start of the epoch or the end of its last validation.
    """

    def __init__(self) -> None:
        self.step = 0
        self.begin()

    def begin(self) -> None:
        """Reset the count."""
        self.images, self.since = 0, time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.step = trainer.global_step
        self.begin()  # a resumed epoch has no start

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.begin()

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.begin()  # the time of validation does not count

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.images += len(batch[0]) * trainer.world_size
        has_stepped, self.step = trainer.global_step > self.step, trainer.global_step  # else gradients accumulate
        if (has_stepped and logged(trainer, trainer.global_step)) or trainer.is_last_batch:
            synchronize(module.device)
            now = time.perf_counter()
            module.log("train/images_per_second", self.images / (now - self.since), prog_bar=True)
            module.log("train/peak_memory_mib", peak_memory(module.device))
            self.images, self.since = 0, now
