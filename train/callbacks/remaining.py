"""What a progress bar says: epoch, step, and the time left of the epoch and of the run.

Times left are of the batches that this process has trained on, so that they are right after a resume too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta

import lightning as L


def batches_left(trainer: L.Trainer, batch_idx: float) -> tuple[float, float]:
    """Return how many batches are left of an epoch and of the training, after a batch of the epoch."""
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
    """Return the steps of an epoch; infinity where its batches are not counted."""
    steps = trainer.num_training_batches / trainer.accumulate_grad_batches
    return math.ceil(steps) if math.isfinite(steps) else steps


def epoch_title(trainer: L.Trainer) -> str:
    """Return `Epoch 3/20`, counted from 1, where steps or epochs end the training; without that where neither is known.

    The number of epochs is of those that are reached: `max_steps` may end a training before `max_epochs`.
    """
    epochs, steps, per_epoch = trainer.max_epochs, trainer.max_steps, steps_per_epoch(trainer)
    ends = [float(epochs)] if epochs is not None and epochs > 0 else []
    ends += [math.ceil(steps / per_epoch)] if steps > 0 and 0 < per_epoch < math.inf else []
    number = trainer.current_epoch + 1
    return f"Epoch {number}" + (f"/{max(number, min(ends)):.0f}" if ends else "")


def clock_time(seconds: float) -> str:
    """Return `0:01:30`, or a question mark for a time that is not known."""
    return str(timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "?"


class Pace:
    """The time that a batch takes, validations between them included, from the end of this process's first batch.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.batches = -1
        self.since = self.now = math.nan

    def count(self) -> None:
        """Count a batch that has ended."""
        self.batches += 1
        self.now = self.clock()
        if self.batches == 0:
            self.since = self.now

    def seconds(self, batches: float) -> float:
        """Return the time that so many batches will take; infinity where nothing is known yet."""
        if not batches:
            return 0.0
        return batches * (self.now - self.since) / self.batches if self.batches > 0 else math.inf


def step_of(trainer: L.Trainer) -> str:
    """Return `120/800`: the step, and the last one of the training where it is known."""
    steps = trainer.estimated_stepping_batches
    return f"{trainer.global_step}/{steps:.0f}" if math.isfinite(steps) else str(trainer.global_step)


def images_of(trainer: L.Trainer, dataloader_idx: int) -> str:
    """Return what the images of one of the loaders of a validation or test are, as `at 96 px`."""
    sizes = trainer.datamodule.sizes()  # type: ignore[attr-defined]
    return f"at {sizes[dataloader_idx]} px" if dataloader_idx < len(sizes) else "on the test images"
