"""The text of a progress bar: epoch, step, and the remaining time of the epoch and of the run.

Remaining times are estimated from this process's batches only, so that they are right after a resume too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import lightning as L


def batches_left(trainer: L.Trainer, batch_idx: float) -> tuple[float, float]:
    """Return the numbers of batches left in the epoch and in the training, after a batch of the epoch."""
    per_epoch, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
    of_epoch = per_epoch - (batch_idx + 1)
    ends = [math.inf]
    if epochs is not None and epochs > 0:
        ends.append((epochs - trainer.current_epoch - 1) * per_epoch + of_epoch)
    if steps > 0:
        ends.append((steps - trainer.global_step) * trainer.accumulate_grad_batches)
    of_run = max(0, min(ends))
    return min(of_epoch, of_run), of_run


def steps_per_epoch(trainer: L.Trainer) -> float:
    """Return the number of steps in an epoch; infinity where its length is not known."""
    steps = trainer.num_training_batches / trainer.accumulate_grad_batches
    return math.ceil(steps) if math.isfinite(steps) else steps


def epoch_title(trainer: L.Trainer) -> str:
    """Return `Epoch 3/20`, counted from 1; without the total where neither steps nor epochs are limited.

    The total is the number of epochs that are reached, since `max_steps` may end a training before `max_epochs`.
    """
    epochs, steps, per_epoch = trainer.max_epochs, trainer.max_steps, steps_per_epoch(trainer)
    ends = [float(epochs)] if epochs is not None and epochs > 0 else []
    ends += [math.ceil(steps / per_epoch)] if steps > 0 and 0 < per_epoch < math.inf else []
    number = trainer.current_epoch + 1
    return f"Epoch {number}" + (f"/{max(number, min(ends)):.0f}" if ends else "")


class Pace:
    """The mean time of a batch, including validations, from the end of this process's first batch.

    Args:
        clock: function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.batches = -1
        self.since = self.now = math.nan

    def count(self) -> None:
        """Count a finished batch."""
        self.batches += 1
        self.now = self.clock()
        if self.batches == 0:
            self.since = self.now

    def seconds(self, batches: float) -> float:
        """Return the expected time of a number of batches in seconds; infinity before the first measurement."""
        if not batches:
            return 0.0
        return batches * (self.now - self.since) / self.batches if self.batches > 0 else math.inf


def step_of(trainer: L.Trainer) -> str:
    """Return `120/800`: the step, and the last step of the training where it is known."""
    steps = trainer.estimated_stepping_batches
    return f"{trainer.global_step}/{steps:.0f}" if math.isfinite(steps) else str(trainer.global_step)


def images_of(trainer: L.Trainer, dataloader_idx: int) -> str:
    """Return a description of the images in one loader of a validation or test, such as `at 96 px`."""
    sizes = trainer.datamodule.sizes()  # type: ignore[attr-defined]
    return f"at {sizes[dataloader_idx]} px" if dataloader_idx < len(sizes) else "on the test images"
