"""What Lightning does that a training here corrects, or rejects by name since no resume of it would be exact."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, WeightAveraging
from torch.optim import Optimizer

from train.runs.folder import BEST, LAST, run_of

REFUSED = {
    "BatchSizeFinder": "chooses another batch size on each machine: give --data.batch_size",
    "LearningRateFinder": "finds another learning rate after a resume: --find_lr suggests one, for --model.optim.lr",
    "GradientAccumulationScheduler": "changes the number of steps, which the cosine of the learning rate goes by: give "
    "--trainer.accumulate_grad_batches",
    "ModelPruning": "changes weights in a way that checkpoints do not hold",
    "BaseFinetuning": "adds weights that the schedule does not know: freeze weights in a class of your own",
    "SpikeDetection": "judges by a mean that checkpoints do not hold: a loss that is not finite ends a training anyway",
}
STRATEGIES = ("spawn", "fork", "notebook")


def check_callbacks(callbacks: Iterable[Callback], ema: float) -> None:
    """Raise a ValueError for a callback that would change a resumed run, or that is incompatible with `--ema`."""
    for callback in callbacks:
        name = type(callback).__name__
        for refused, reason in REFUSED.items():
            if isinstance(callback, getattr(lightning_callbacks, refused)):
                raise ValueError(f"{name} {reason}.")
        if ema and isinstance(callback, WeightAveraging):
            raise ValueError(f"--ema {ema} and {name} both average the weights: give one of them.")
        if (monitor := getattr(callback, "monitor", None)) and str(monitor).startswith("test/"):
            raise ValueError(f"{name} must not choose by test images ({monitor}): take a metric of val/.")
        if isinstance(callback, ModelCheckpoint):
            check_file_names(callback)


def check_file_names(callback: ModelCheckpoint) -> None:
    """Raise a ValueError for checkpoints with the names of those that a run is resumed from."""
    folder = callback.dirpath
    names = [LAST] * bool(callback.save_last) + [f"{callback.filename}.ckpt"]
    if (folder is None or run_of(Path(folder) / LAST)) and (taken := {LAST, BEST} & {*names}):
        raise ValueError(
            f"ModelCheckpoint would write {taken.pop()}, as each run does by itself, and resume goes on from it. Leave "
            f"out save_last, and take another filename, or give it a dirpath outside of checkpoints."
        )


def check_strategy(strategy: Any) -> None:
    """Raise a ValueError for a strategy that forks or spawns its processes."""
    if isinstance(strategy, str) and any(word in strategy for word in STRATEGIES):
        raise ValueError(
            f"--trainer.strategy {strategy} starts processes from copies of this one, which hold its locks and files: "
            f"take ddp, or start the processes with torchrun."
        )


class DropEarlyDecisions(Callback):
    """Drop a decision to stop before `min_epochs` or `min_steps`.

    Lightning would keep it until then, but lose it in a resumed run. `EarlyStopping` decides again after each
    validation.
    """

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = False  # otherwise there would be no further batch


class LastWindow(Callback):
    """Make the gradient of an epoch's last accumulation window the mean over its batches, where it is shorter.

    Lightning divides every loss by `accumulate_grad_batches`, so that the gradient of fewer batches would be too small.
    """

    def on_before_optimizer_step(self, trainer: L.Trainer, module: L.LightningModule, optimizer: Optimizer) -> None:
        batches = (trainer.fit_loop.epoch_loop.batch_idx + 1) % trainer.accumulate_grad_batches
        if batches == 0:  # a full window
            return
        for weight in module.parameters():
            if weight.grad is not None:
                weight.grad.mul_(trainer.accumulate_grad_batches / batches)
