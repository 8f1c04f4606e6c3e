"""Checkpoints of a run that may have been moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from train.callbacks.control import validation_due
from train.files import LAST


class MovableCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint that knows its best model after its folder was moved or copied.

    Lightning's own forgets it then, so that the next model, however bad, would replace it.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath)) / Path(path).name) if path else path

        moved = {key: here(value) for key, value in state_dict.items() if key.endswith("_model_path") and value}
        best = {here(path): value for path, value in state_dict.get("best_k_models", {}).items()}
        super().load_state_dict({**state_dict, **moved, "best_k_models": best, "dirpath": self.dirpath})

    def write_last(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(Path(str(self.dirpath)) / LAST)


class StepCheckpoint(MovableCheckpoint):
    """One every so many steps; instead of right before a validation, which a run resumed from there would leave out,
    one step after it."""

    def __init__(self, every_n_train_steps: int, **options: Any):
        super().__init__(every_n_train_steps=every_n_train_steps, **options)
        self.every, self.missed = every_n_train_steps, 0

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if validation_due(trainer, batch_idx):
            self.missed = step if step % self.every == 0 else self.missed
        elif 0 < self.missed < step:
            self.missed = 0
            self.write_last(trainer)
        else:
            super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)


class EpochCheckpoint(MovableCheckpoint):
    """One at the end of each epoch; of a training that `max_steps` ends within one, at its last step.

    Lightning counts that epoch as a whole one afterwards, and with more steps would go on with the next.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.within = False

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.within = 0 < trainer.max_steps <= trainer.global_step and not trainer.is_last_batch
        if self.within and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.write_last(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not self.within:
            super().on_train_epoch_end(trainer, module)
