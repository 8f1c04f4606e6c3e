"""Checks of a run: the model fits the data, only one process trains it, and errors have a traceback."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import lightning as L
from filelock import FileLock, Timeout
from lightning.pytorch.callbacks import Callback

from train.callbacks.early_stopping import check_monitors
from train.data.image_checks import check_test_classes, warn_of_validation
from train.data.images import UnreadableImageError
from train.data.module import ImageData
from train.data.ranks import check_ranks
from train.data.sources import DEEP
from train.runs.folder import CHECKPOINTS, LOCK, LOCK_VARIABLE, remove_partial
from train.runs.lock import held_by


class CheckData(Callback):
    """Raise an error before the first step where the model does not fit the data."""

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        data.setup(stage)
        if stage == "fit":
            check_ranks(data)
            check_test_classes(data)  # before the number of classes, which depends on the set
        self.check(data, module)
        if stage == "fit":
            check_monitors(trainer, module)
            warn_of_validation(data)

    def check(self, data: ImageData, module: L.LightningModule) -> None:
        """Raise a ValueError where the model does not fit the data after `setup`."""
        config = module.vit.config  # type: ignore[union-attr]
        if config.head != data.head and config.head == "dense" and data.task is None:  # type: ignore[union-attr]
            raise ValueError(
                f"a model with head dense needs the class of each pixel, and {data.source} has one class for each "
                f"image: folders of images and masks are read by --data.source masks."
            )
        for name in ("head", "num_classes", "in_channels"):
            of_model, of_data = getattr(config, name), getattr(data, name)
            if of_model != of_data:
                hint = ""
                if name == "in_channels" and data.task is None:
                    arrays = f", or --data.channels {of_model} where images are arrays of as many"
                    hint = ", or make the images grey by --data.grey true" if of_model == 1 else arrays
                raise ValueError(
                    f"the data ({data.source}) has {name}={of_data}, the model {of_model}: set --model.vit.{name} "
                    f"{of_data}{hint if of_model == 1 or data.source in DEEP else ''}."
                )
        fixed = data.task is not None and data.task.fixed_scale
        if fixed and module.optim.image_scale > 1:  # type: ignore[union-attr,operator]
            raise ValueError(
                f"image_scale has no meaning for the {data.source} task, whose {fixed}: take it out, or use "
                f"randomized_positions or position_scale."
            )
        for size in data.sizes():
            module.vit.grid(*size)  # type: ignore[operator,union-attr]


class LockRun(Callback):
    """Lock a run, since two processes would write the same checkpoints and metrics.

    A sweep holds the locks of its runs, and passes that on in an environment variable.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: Path):
        self.lock = FileLock((run / LOCK).resolve(), timeout=0)

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        path = Path(self.lock.lock_file)
        run = path.parent
        if stage != "fit" or not trainer.is_global_zero:
            return
        if os.environ.get(LOCK_VARIABLE) != str(path):
            run.mkdir(parents=True, exist_ok=True)
            try:
                self.lock.acquire()
            except Timeout:
                raise ValueError(
                    f"another process trains {run}: wait until it has ended, or stop it first.{held_by(path)}"
                ) from None
        for folder in (run, run / CHECKPOINTS):
            remove_partial(folder)

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self.lock.release()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.lock.release()


class ShowTraceback(Callback):
    """Print the traceback of a ValueError during training, before the command line reduces it to one line.

    Errors for unreadable images are left out, since their message names the image.
    """

    def __init__(self) -> None:
        self.begun = False

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.begun = True

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        if self.begun and isinstance(exception, ValueError) and not isinstance(exception, UnreadableImageError):
            traceback.print_exception(exception)
