"""The progress of a training run: a bar on a terminal, and lines in other output."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from train.callbacks.remaining import Pace, batches_left, epoch_title, images_of, step_of
from train.utils.progress import BETWEEN, clock_time


class TerminalProgress(TQDMProgressBar):
    """Lightning's epoch bar with the run's remaining time, correct also in a resumed epoch."""

    def __init__(self) -> None:
        super().__init__(leave=True)
        self.pace = Pace()
        self.epoch = -1
        self.run_left: dict[str, str] = {}

    def get_metrics(self, trainer: L.Trainer, model: L.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, model)
        return {**self.run_left, **{k.removeprefix("train/"): v for k, v in metrics.items() if k != "v_num"}}

    def on_train_start(self, *_: Any) -> None:
        self.train_progress_bar = Tqdm(disable=True)

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        pass  # Lightning skips it in a resumed epoch: the first batch begins the bar

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self.epoch != trainer.current_epoch:
            self.epoch = trainer.current_epoch
            self.train_progress_bar = Tqdm(
                desc=epoch_title(trainer),
                total=trainer.num_training_batches,
                initial=batch_idx,  # batches of an earlier process do not count in the pace
                disable=self.is_disabled,
                leave=True,
                dynamic_ncols=True,
                file=sys.stdout,
                smoothing=0,
                bar_format=self.BAR_FORMAT,
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.pace.count()
        left = self.pace.seconds(batches_left(trainer, batch_idx)[1])
        self.run_left = {"run ends in": clock_time(left), "step": step_of(trainer)}
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)

    def close(self) -> None:
        """End the line of the bar, so that text can follow; the bar is not drawn again."""
        self.train_progress_bar.close()

    def on_validation_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        super().on_validation_batch_start(trainer, module, batch, batch_idx, dataloader_idx)
        if batch_idx == 0:
            self.val_progress_bar.set_description(f"Validation {images_of(trainer, dataloader_idx)}")

    def on_test_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        super().on_test_batch_start(trainer, module, batch, batch_idx, dataloader_idx)
        if batch_idx == 0:
            self.test_progress_bar.set_description(f"Test {images_of(trainer, dataloader_idx)}")


class LineProgress(ProgressBar):
    """A line for each epoch, and one per minute within it, for output to a file or a pipe.

    Args:
        clock: function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self.clock, self.pace = clock, Pace(clock)
        self.enabled, self.last = True, clock()
        self.validated = False  # whether a validation followed the last line of an epoch

    def disable(self) -> None:
        self.enabled = False

    def enable(self) -> None:
        self.enabled = True

    def write(self, text: str) -> None:
        """Write a line and flush it."""
        self.last = self.clock()
        if self.enabled:
            print(text, flush=True)

    def due(self) -> bool:
        """Return whether `BETWEEN` seconds have passed since the last line."""
        return self.clock() - self.last >= BETWEEN

    def describe(self, trainer: L.Trainer, module: L.LightningModule) -> str:
        """Return the metrics of the progress bar as text, with those of a validation only once."""
        metrics = {k: v for k, v in self.get_metrics(trainer, module).items() if k != "v_num"}
        metrics = {k: v for k, v in metrics.items() if self.validated or not k.startswith(("val/", "test/"))}
        return "".join(f", {name} {value:.4g}" for name, value in metrics.items() if isinstance(value, float | int))

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.pace.count()
        if not self.due():
            return
        of_epoch, of_run = batches_left(trainer, batch_idx)
        share = math.floor(100 * (batch_idx + 1) / trainer.num_training_batches)
        epoch, run = (clock_time(self.pace.seconds(left)) for left in (of_epoch, of_run))
        where = f"{epoch_title(trainer)}: {share:3d}%, step {step_of(trainer)}"
        self.write(f"{where}{self.describe(trainer, module)}; epoch ends in {epoch}, run in {run}")

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        left = self.pace.seconds(batches_left(trainer, trainer.num_training_batches - 1)[1])
        where = f"{epoch_title(trainer)}: 100%, step {step_of(trainer)}"
        self.write(f"{where}{self.describe(trainer, module)}; run ends in {clock_time(left)}")
        self.validated = False

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.validated = True

    def on_validation_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *of_batch: Any) -> None:
        self.say_evaluated("Validation", trainer, trainer.num_val_batches, *of_batch[2:])

    def on_test_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *of_batch: Any) -> None:
        self.say_evaluated("Test", trainer, trainer.num_test_batches, *of_batch[2:])

    def say_evaluated(
        self, title: str, trainer: L.Trainer, batches: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write the progress of a validation or test at one of its sizes, if a line is due.

        Args:
            title: title of the line.
            trainer: trainer, whose data module has the sizes.
            batches: number of batches at each size.
            batch_idx: index of the batch that has ended.
            dataloader_idx: index of the size; the index after the last size stands for the test images.
        """
        if self.due():
            share = math.floor(100 * (batch_idx + 1) / batches[dataloader_idx])
            sizes = len(trainer.datamodule.sizes())  # type: ignore[attr-defined]
            part = f"size {dataloader_idx + 1} of {sizes}" if dataloader_idx < sizes else "test images"
            self.write(f"{title}, {part}: {share}%")


def progress_bar() -> ProgressBar:
    """Return the progress bar for the current output: a bar on a terminal, else lines."""
    return TerminalProgress() if sys.stdout.isatty() else LineProgress()
