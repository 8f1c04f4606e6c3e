"""End a training on Ctrl-C, at the end of its time, or with a last validation; and query the state of its loop."""

from __future__ import annotations

import math
import shlex
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint, Timer
from lightning.pytorch.utilities import rank_zero_info

from train.callbacks.progress import TerminalProgress
from train.runs.folder import LAST, OUT_OF_TIME
from train.runs.slurm import requeue


def at_the_end(trainer: L.Trainer) -> bool:
    """Return whether all epochs or steps are finished."""
    epochs = trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch
    return epochs or 0 <= trainer.max_steps <= trainer.global_step


def out_of_time(trainer: L.Trainer) -> bool:
    """Return whether `max_time` has passed with steps left to train."""
    left = [c.time_remaining() for c in trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
    return any(x is not None and x <= 0 for x in left) and not at_the_end(trainer)


def last_of_all(trainer: L.Trainer) -> bool:
    """Return whether the current step is the last of the training."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if 0 < steps <= trainer.global_step:
        return True
    return trainer.is_last_batch and epochs is not None and 0 < epochs <= trainer.current_epoch + 1


def ends_after_epoch(trainer: L.Trainer) -> bool:
    """Return at the end of an epoch whether it is the last one, as planned or by decision of a callback."""
    least = trainer.current_epoch + 1 >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
    return last_of_all(trainer) or (trainer.should_stop and least)


def validation_due(trainer: L.Trainer, batch_idx: int) -> bool:
    """Return whether Lightning validates after a batch of an epoch."""
    every, batches = trainer.check_val_every_n_epoch, trainer.val_check_batch or math.inf
    if last_of_all(trainer):
        return True
    if every is None:
        return (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % batches == 0
    if (trainer.current_epoch + 1) % every:
        return False
    return (batch_idx + 1) % batches == 0


def whole_window(trainer: L.Trainer, batch_idx: int) -> bool:
    """Return whether a window of accumulated gradients is complete after a batch of an epoch."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def ends_within(trainer: L.Trainer) -> bool:
    """Return whether `max_steps` ended the training within an epoch."""
    return 0 < trainer.max_steps <= trainer.global_step and not trainer.is_last_batch


class ValidateAtEnd(Callback):
    """Validate after the last epoch or step, in addition to the configured validations."""

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if last_of_all(trainer):
            trainer.check_val_every_n_epoch, trainer.should_stop = 1, True  # Lightning validates at these


class JobTimer(Timer):
    """Report when `max_time` has passed in this process; a resumed run has the full time again.

    `CleanStop` then ends the training. Lightning would validate first, in the middle of an epoch or of accumulation.
    """

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        pass

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class CleanStop(Callback):
    """Stop a training cleanly on Ctrl-C, SIGTERM or at the end of `max_time`.

    After the first signal the current step is finished, the state is saved and the training stops. The exit status is
    130 for Ctrl-C, 143 for SIGTERM and `OUT_OF_TIME` for the end of `max_time`. A second signal stops at once. SLURM's
    warning signal acts like the end of `max_time`, and the job is requeued after the state is saved.

    In these cases the stop waits for the next step, or for the end of the epoch if that is next:

    - In a validation, or before one that is due: averaged weights may be in use until then, and a resumed run would not
      repeat the validation.
    - In the last step of an epoch: Lightning's counters are not consistent until the epoch's end.
    - While gradients are accumulated, since they are not saved.

    If the training ends with that epoch, the process exits after it with the same status.

    Args:
        directory: folder of the checkpoint.
        program: command that resumes a run, for the message.
        warning: number of SLURM's warning signal; None for none.
    """

    def __init__(self, directory: Path, program: str, warning: int | None = None):
        self.path, self.program, self.warning = directory / LAST, program, warning
        self.signal: int | None = None
        self.saved = False
        self._before: dict[int, Any] = {}

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        if self.warning is not None:  # before Lightning's handler, which would save during a step
            self._before[self.warning] = signal.signal(self.warning, self._receive)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if number == self.warning:
            rank_zero_info("\nSLURM ends this job soon: it is stopped after this step, and queued again.")
            return
        rank_zero_info("\nStopping after this step; once more to stop at once.")
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        late, whole = out_of_time(trainer), whole_window(trainer, batch_idx) and not trainer.is_last_batch
        wanted = (late or self.signal is not None) and whole and not validation_due(trainer, batch_idx)
        self.save(trainer, wanted, "Out of time" if late else "Stopped")

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.leave(trainer)  # the metrics of the last step are logged now

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        late = out_of_time(trainer) and not last_of_all(trainer)
        wanted = late or (self.signal is not None and not ends_after_epoch(trainer))
        self.save(trainer, wanted, "Out of time" if late else "Stopped")
        self.leave(trainer)

    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.signal in (signal.SIGINT, signal.SIGTERM) or out_of_time(trainer):
            raise SystemExit(self.status())

    def save(self, trainer: L.Trainer, wanted: bool, why: str) -> None:
        """Save the state before the end if at least one process wants it."""
        if trainer.strategy.reduce_boolean_decision(wanted, all=False):
            self.saved, trainer.should_stop = True, False  # a `Timer` callback may have set it
            trainer.save_checkpoint(self.path, weights_only=False)
            if isinstance(bar := trainer.progress_bar_callback, TerminalProgress):
                bar.close()  # so that the message is on a line of its own
            rank_zero_info(
                f"{why} at step {trainer.global_step}. Continue with: {self.program} resume "
                f"{shlex.quote(str(self.path.parents[1]))}"
            )

    def leave(self, trainer: L.Trainer) -> None:
        """End the training if its state is saved; all processes call this at the same step."""
        if self.saved:
            warned = self.signal is not None and self.signal == self.warning
            if trainer.strategy.reduce_boolean_decision(warned, all=False) and trainer.is_global_zero:
                requeue()
            raise SystemExit(self.status())

    def status(self) -> int:
        """Return the exit status of a training run that was stopped by a signal or the end of its time."""
        return 128 + self.signal if self.signal in (signal.SIGINT, signal.SIGTERM) else OUT_OF_TIME

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self._restore()


class StopAfterCheckpoints(CleanStop, Checkpoint):
    """`CleanStop` that acts at the end of an epoch after `EarlyStopping` and all earlier checkpoint callbacks.

    Lightning calls these two kinds after all other callbacks, so that their state after a validation is saved.
    """
