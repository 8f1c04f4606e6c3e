"""Gradient accumulation: correct scale of a shorter last window."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import Callback
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
