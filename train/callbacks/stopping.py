"""Ends of a training: on Ctrl-C, out of time, or with a last validation; and where in its loop a training is."""

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
    """Return whether all epochs or steps are trained."""
    epochs = trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch
    return epochs or 0 <= trainer.max_steps <= trainer.global_step


def out_of_time(trainer: L.Trainer) -> bool:
    """Return whether `max_time` is over, with steps left to train."""
    left = [c.time_remaining() for c in trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
    return any(x is not None and x <= 0 for x in left) and not at_the_end(trainer)


def last_of_all(trainer: L.Trainer) -> bool:
    """Return whether the step that was just taken is the last of the training."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if 0 < steps <= trainer.global_step:
        return True
    return trainer.is_last_batch and epochs is not None and 0 < epochs <= trainer.current_epoch + 1


def ends_after_epoch(trainer: L.Trainer) -> bool:
    """Return at the end of an epoch whether it is the last one, by plan or since a callback has decided so."""
    least = trainer.current_epoch + 1 >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
    return last_of_all(trainer) or (trainer.should_stop and least)


def validation_due(trainer: L.Trainer, batch_idx: int) -> bool:
    """Return whether Lightning validates after this batch of an epoch."""
    every, batches = trainer.check_val_every_n_epoch, trainer.val_check_batch or math.inf
    if last_of_all(trainer):
        return True
    if every is None:
        return (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % batches == 0
    if (trainer.current_epoch + 1) % every:
        return False
    return (batch_idx + 1) % batches == 0


def whole_window(trainer: L.Trainer, batch_idx: int) -> bool:
    """Return whether no gradients are being accumulated after this batch of an epoch."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def ends_within(trainer: L.Trainer) -> bool:
    """Return whether `max_steps` ended the training within an epoch."""
    return 0 < trainer.max_steps <= trainer.global_step and not trainer.is_last_batch


class ValidateAtEnd(Callback):
    """Validate after the last epoch or step, beside the validations asked for."""

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if last_of_all(trainer):
            trainer.check_val_every_n_epoch, trainer.should_stop = 1, True  # which Lightning validates at


class JobTimer(Timer):
    """Tell when `max_time` is over, the time of one process: a resumed run has all of it again.

    `CleanStop` ends the training then. Lightning would validate first, amid an epoch or a window of gradients.
    """

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        pass

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class CleanStop(Callback):
    """Stop a training cleanly on Ctrl-C, SIGTERM or at the end of `max_time`.

    The first signal ends the current step, saves the state and stops. The exit status is 130 for Ctrl-C, 143 for
    SIGTERM and `OUT_OF_TIME` for the end of `max_time`. A second one stops at once. The signal by which SLURM warns of
    the end of a job does as the end of `max_time`, and the job is queued again once the state is saved.

    The stop waits in these cases for the next step, or for the end of the epoch where it is near:

    - In a validation, or before one that is due. An average of the weights may be in use until then, and a resumed run
      would not make up for the validation.
    - In the last step of an epoch. Until the epoch's end Lightning's counters are not whole.
    - While gradients are accumulated, since they are not saved.

    Where the training ends with that epoch, the process ends after it with the same status.

    Args:
        directory: of the checkpoint.
        program: that continues a run, for the message.
        warning: the signal by which SLURM warns, None for none.
    """

    def __init__(self, directory: Path, program: str, warning: int | None = None):
        self.path, self.program, self.warning = directory / LAST, program, warning
        self.signal: int | None = None
        self.saved = False
        self._before: dict[int, Any] = {}

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        if self.warning is not None:  # before Lightning, whose handler would save amid a step
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
        self.leave(trainer)  # now that the metrics of the last step are logged

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        late = out_of_time(trainer) and not last_of_all(trainer)
        wanted = late or (self.signal is not None and not ends_after_epoch(trainer))
        self.save(trainer, wanted, "Out of time" if late else "Stopped")
        self.leave(trainer)

    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.signal in (signal.SIGINT, signal.SIGTERM) or out_of_time(trainer):
            raise SystemExit(self.status())

    def save(self, trainer: L.Trainer, wanted: bool, why: str) -> None:
        """Save the state before the end, where one process at least asks for it."""
        if trainer.strategy.reduce_boolean_decision(wanted, all=False):
            self.saved, trainer.should_stop = True, False  # a `Timer` among the callbacks has set it
            trainer.save_checkpoint(self.path, weights_only=False)
            if isinstance(bar := trainer.progress_bar_callback, TerminalProgress):
                bar.close()  # or the message would stand behind it
            rank_zero_info(
                f"{why} at step {trainer.global_step}. Continue with: {self.program} resume "
                f"{shlex.quote(str(self.path.parents[1]))}"
            )

    def leave(self, trainer: L.Trainer) -> None:
        """End the training once its state is saved. All processes call this at the same step."""
        if self.saved:
            warned = self.signal is not None and self.signal == self.warning
            if trainer.strategy.reduce_boolean_decision(warned, all=False) and trainer.is_global_zero:
                requeue()
            raise SystemExit(self.status())

    def status(self) -> int:
        """Return the exit status of a training that a signal or the end of its time has stopped."""
        return 128 + self.signal if self.signal in (signal.SIGINT, signal.SIGTERM) else OUT_OF_TIME

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self._restore()


class StopAfterCheckpoints(CleanStop, Checkpoint):
    """Stop as `CleanStop` does, at the end of an epoch after `EarlyStopping` and all checkpoints before it in the list.

    Lightning calls these two kinds after all other callbacks. What they make of a validation is saved so.
    """
