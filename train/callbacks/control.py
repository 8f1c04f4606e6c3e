"""Control of a run: reproducible steps, checks before the start, a clean stop."""

from __future__ import annotations

import math
import os
import shlex
import signal
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from filelock import FileLock, Timeout
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.utilities import rank_zero_info

from performer_string.utils.seeds import derive_seed
from train.data.images import UnreadableImageError
from train.data.module import ImageData
from train.files import CHECKPOINTS, HELD, LAST, LOCK, remove_partial


def at_the_end(trainer: L.Trainer) -> bool:
    """Whether all epochs or steps are trained."""
    epochs = trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch
    return epochs or 0 <= trainer.max_steps <= trainer.global_step


def out_of_time(trainer: L.Trainer) -> bool:
    """Whether `max_time` is over, with steps left to train."""
    left = [c.time_remaining() for c in trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
    return any(x is not None and x <= 0 for x in left) and not at_the_end(trainer)


def last_of_all(trainer: L.Trainer) -> bool:
    """Whether the step that was just taken is the last of the training."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if 0 < steps <= trainer.global_step:
        return True
    return trainer.is_last_batch and epochs is not None and 0 < epochs <= trainer.current_epoch + 1


def validation_due(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether Lightning validates after this batch of an epoch."""
    every, batches = trainer.check_val_every_n_epoch, trainer.val_check_batch or math.inf
    if last_of_all(trainer):
        return True
    if every is None:
        return (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % batches == 0
    if (trainer.current_epoch + 1) % every:
        return False
    return (batch_idx + 1) % batches == 0


def whole_window(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether no gradients are being accumulated after this batch of an epoch."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


class ValidateAtEnd(Callback):
    """A validation after the last epoch or step, beside those asked for."""

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if last_of_all(trainer):
            trainer.check_val_every_n_epoch, trainer.should_stop = 1, True  # which Lightning validates at


class JobTimer(Timer):
    """The end of `max_time`, which is the time of one process: a resumed run has all of it again."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class StepSeed(Callback):
    """Random numbers of a training step (mixup, stochastic depth) as a function of (seed, step, rank) alone.

    With the order of the data and the random features being such functions too, a resumed run needs no saved random
    state to end with the same weights as one that was left alone.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.fit_loop.epoch_loop.total_batch_idx
        torch.manual_seed(derive_seed(self.seed, "step", step, trainer.global_rank))


class WholeEpochs(Callback):
    """An epoch that is done is not begun again by a run that is resumed from its end.

    With `max_steps` Lightning takes every epoch of a checkpoint for one that was left within it, and an empty one would
    count.
    """

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]


class CheckData(Callback):
    """Errors before the first step where the model does not fit the data."""

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        data.setup(stage)
        config = module.vit.config  # type: ignore[union-attr]
        for name in ("num_classes", "in_channels"):
            given, wanted = getattr(config, name), getattr(data, name)
            if given != wanted:
                raise ValueError(
                    f"the data ({data.source}) has {name}={wanted}, the model {given}: set --model.vit.{name} "
                    f"{wanted}, or begin with a recipe, --config train/configs/NAME.yaml."
                )
        if data.stored is None and module.optim.image_scale > 1:  # type: ignore[union-attr,operator]
            raise ValueError(
                "image_scale has no meaning for the arrow task, whose cells are one patch each: take it out, or use "
                "randomized_positions or position_scale."
            )
        for size in data.sizes():
            module.vit.grid(*size)  # type: ignore[operator,union-attr]


class HoldRun(Callback):
    """One process at a time trains a run: two would write the same checkpoints and curves.

    A sweep holds the lock of each run that it trains, and says so in the environment.
    """

    def __init__(self, run_dir: Path):
        self.lock = FileLock((run_dir / LOCK).resolve(), timeout=0)

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        path = Path(self.lock.lock_file)
        run = path.parent
        if stage != "fit" or not trainer.is_global_zero:
            return
        if os.environ.get(HELD) != str(path):
            run.mkdir(parents=True, exist_ok=True)
            try:
                self.lock.acquire()
            except Timeout:
                raise ValueError(f"another process trains {run}: wait until it has ended, or stop it first.") from None
        for folder in (run, run / CHECKPOINTS):
            remove_partial(folder)

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self.lock.release()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.lock.release()


class ShowTraceback(Callback):
    """Where a ValueError amid training comes from, before the command line makes one line of it; but for a file that
    is named in it, and is all that there is to mend."""

    def __init__(self) -> None:
        self.begun = False

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.begun = True

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        if self.begun and isinstance(exception, ValueError) and not isinstance(exception, UnreadableImageError):
            traceback.print_exception(exception)


class CleanStop(Callback):
    """The first Ctrl-C (or SIGTERM) ends the step at hand, saves the state and stops; a second one stops at once. The
    end of `max_time` does the former.

    In a validation, or before one that is due, it takes effect after the next step, or the epoch where that is over: an
    average of the weights may be in use until then, and a resumed run would not make up for the validation. So it does
    in the last step of an epoch, between which and the epoch's end Lightning's counters are not whole. Gradients being
    accumulated come first as well, since they are not saved.
    """

    def __init__(self, directory: Path, program: str):
        self.path, self.program = directory / LAST, program
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        rank_zero_info("\nStopping after this step; once more to stop at once.")
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        late, asked = out_of_time(trainer), self.signal is not None and not validation_due(trainer, batch_idx)
        whole = whole_window(trainer, batch_idx) and not trainer.is_last_batch
        self.stop(trainer, whole and (asked or late), "Out of time" if late else "Stopped")

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.stop(trainer, self.signal is not None and not at_the_end(trainer), "Stopped")

    def stop(self, trainer: L.Trainer, wanted: bool, why: str) -> None:
        """Saves and ends the training, where one process at least wants it."""
        if trainer.strategy.reduce_boolean_decision(wanted, all=False):
            trainer.save_checkpoint(self.path, weights_only=False)
            rank_zero_info(
                f"{why} at step {trainer.global_step}. Continue with: {self.program} resume "
                f"{shlex.quote(str(self.path.parents[1]))}"
            )
            raise KeyboardInterrupt

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self._restore()
