"""Best and last checkpoints of a run, and callbacks that make a resumed run equal to an uninterrupted one."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from performer_string.utils.files import write_aside
from performer_string.utils.seeds import derive_seed
from train._compat import count_whole_epochs
from train.callbacks.stopping import ends_within, validation_due, whole_window
from train.module import REMEDIES, NonFiniteLossError
from train.runs.folder import LAST
from train.sharding import whole
from train.utils.seeds import seed_others


class AtomicCheckpoints(TorchCheckpointIO):
    """Write checkpoints under a temporary name and rename them, so that none is partial; read them without code.

    Lightning writes to the folder for temporary files. If that is another file system, it then copies them over the
    previous checkpoint, which is not atomic.
    """

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Return the content of a checkpoint, without running code in it (`weights_only=True`)."""
        return super().load_checkpoint(path, map_location, weights_only=True)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise TypeError("checkpoints are local files here, which have no storage_options.")
        try:
            with write_aside(Path(path), synchronise=True) as partial:
                torch.save(checkpoint, partial)
        except RuntimeError as error:
            if not any(words in str(error) for words in ("inline_container", "iostream error")):
                raise
            text = "could not be written, as on a full disk; the checkpoint before it, if there was one, is still there"
            raise OSError(errno.ENOSPC, text, str(path)) from error  # torch's error does not mention the disk


class MovableCheckpoint(ModelCheckpoint):
    """Keep the best model of a run as `best.ckpt`, even after the run's folder was moved or copied.

    Lightning's `ModelCheckpoint` would forget it, so that the next model would replace it in any case. A run in a new
    folder without `best.ckpt` starts from none.

    Args:
        directory: folder of the file.
        monitor: name of the metric that is highest for the best model.
    """

    def __init__(self, directory: Path, monitor: str = "val/accuracy"):
        super().__init__(directory, "best", monitor, mode="max", enable_version_counter=False)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.limit_val_batches != 0:  # models cannot be compared without validation
            super().on_train_epoch_end(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath)) / Path(path).name) if path else path

        moved = {key: here(value) for key, value in state_dict.items() if key.endswith("_model_path") and value}
        if not Path(moved.get("best_model_path", "")).is_file():
            return
        best = {here(path): value for path, value in state_dict.get("best_k_models", {}).items()}
        super().load_state_dict({**state_dict, **moved, "best_k_models": best, "dirpath": self.dirpath})


class SameFolder(Callback):
    """Let a `ModelCheckpoint` of the user keep its state where the run's folder is typed in another way.

    Lightning compares the text of both paths, and drops the best score and the files to replace where they differ.
    """

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key, {})
            before, now = state.get("dirpath"), getattr(callback, "dirpath", None)
            if before and now and Path(before).resolve() == Path(now).resolve():
                state["dirpath"] = now


def check_finite_weights(trainer: L.Trainer) -> None:
    """Raise an error where a weight is not finite, before its checkpoint replaces a good one.

    A finite loss may have a gradient that is not finite. The next step's loss would show it, but a save may come first.
    """
    for name, weight in trainer.lightning_module.named_parameters():
        if not torch.isfinite(whole(weight)).all():
            raise NonFiniteLossError(
                f"{name} has entries that are not finite after step {trainer.global_step}, so that training stopped; "
                f"the checkpoints are those of before. {REMEDIES}"
            )


class LastCheckpoint(Checkpoint):
    """Save `last.ckpt` every `every` steps, at the end of each epoch, and at the end of the training.

    A resumed run continues from it exactly:

    - It is saved between full windows of accumulated gradients, which are not saved.
    - Right before a validation it is postponed by one step, since a resumed run would skip that validation.
    - In an epoch that `max_steps` ends, it is saved after the validation, since Lightning counts that epoch as complete
      afterwards.

    Args:
        directory: folder of the file.
        every: number of steps between saves; 0 saves only at the ends of epochs and of the training.
    """

    def __init__(self, directory: Path, every: int):
        if every < 0:
            raise ValueError(f"--checkpoint_every must be 0 or more steps, not {every}.")
        self.path, self.every, self.saved = directory / LAST, every, 0

    def save(self, trainer: L.Trainer) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.saved = trainer.global_step
            trainer.save_checkpoint(self.path, weights_only=False)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = self.every > 0 and trainer.global_step // self.every > self.saved // self.every
        validated_next = bool(trainer.enable_validation) and validation_due(trainer, batch_idx)
        due = due and not trainer.is_last_batch  # the epoch's end is next, with consistent counters
        if (due or ends_within(trainer)) and whole_window(trainer, batch_idx) and not validated_next:
            self.save(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        check_finite_weights(trainer)  # of every file: one at a stop, and those of a user's callback, too

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:  # this validation chooses the best checkpoint
            check_finite_weights(trainer)

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and ends_within(trainer):
            self.save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not ends_within(trainer):
            self.save(trainer)

    def state_dict(self) -> dict[str, int]:
        return {"saved": self.saved}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.saved = state_dict["saved"]


class StepSeed(Callback):
    """Seed torch, numpy and Python at each step by (seed, step, rank), for mixup or stochastic depth.

    The order of the data and the random features have such seeds too. So a resumed run ends with the same weights as an
    uninterrupted one, without a saved random state. The model gets the seed of rank 0 for what all ranks share.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.fit_loop.epoch_loop.total_batch_idx
        module.step_seed = derive_seed(self.seed, "step", step, 0)  # type: ignore[assignment]
        seed = derive_seed(self.seed, "step", step, trainer.global_rank)
        torch.manual_seed(seed)
        seed_others(seed)


class WholeEpochs(Callback):
    """Let a run that is resumed from the end of an epoch continue with the next epoch."""

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        count_whole_epochs(trainer)
