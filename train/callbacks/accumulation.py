"""Gradient accumulation: correct scale of a shorter last window, and the right schedule in resumed epochs."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from torch.optim import Optimizer


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


class KeepAccumulation(Callback):
    """Apply `GradientAccumulationScheduler` in a resumed epoch, where Lightning does not."""

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GradientAccumulationScheduler):
                trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)
