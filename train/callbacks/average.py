"""The average of the weights that `--ema` trains, and that of Lightning's StochasticWeightAveraging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import (
    Callback,
    Checkpoint,
    EMAWeightAveraging,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import Tensor
from torch.optim.swa_utils import get_ema_avg_fn


class WarmAverage(WeightAveraging):
    """Average the weights over the steps, with a decay of min(decay, (1 + t) / (10 + t)) after t steps.

    This is the decay of TensorFlow's `ExponentialMovingAverage` with `num_updates`. With a constant decay near 1, the
    average of a short run would consist of its first weights. Runs that began with a constant decay keep it.

    Args:
        decay: decay after the warm-up.
    """

    def __init__(self, decay: float):
        super().__init__(use_buffers=False, avg_fn=self.average)
        self.decay, self.step, self.warms_up = decay, 0, True

    @property
    def state_key(self) -> str:
        return EMAWeightAveraging.__qualname__  # of older checkpoints

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        # Lightning takes the device of the module, which is still on the host: each step would copy all weights there.
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)

    def average(self, average: Tensor, weight: Tensor, count: Tensor | int) -> Tensor:
        """Return the new average of a weight. A number on the host gives the decay, since `count` may be on a GPU."""
        decay = min(self.decay, (1 + self.step) / (10 + self.step)) if self.warms_up else self.decay
        return get_ema_avg_fn(decay)(average, weight, count)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.step = trainer.global_step - 1
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "warms_up": self.warms_up}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.warms_up = state_dict.get("warms_up", False)


class FinalAverage(Checkpoint):
    """What StochasticWeightAveraging leaves out: an exact resume amid an epoch, and a checkpoint of the average.

    Lightning sets up its schedule of the learning rate where an epoch begins, which changes the rate at once.

    Args:
        save: function that saves the last checkpoint of a trainer.
    """

    def __init__(self, save: Callable[[L.Trainer], None]):
        self.save, self.resumed = save, list[Callback]()

    def averages(self, trainer: L.Trainer) -> list[Callback]:
        """Return the callbacks that average."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        return [each for each in callbacks if isinstance(each, StochasticWeightAveraging)]

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        states = checkpoint["callbacks"]
        self.resumed = [each for each in self.averages(trainer) if states.get(each.state_key, {}).get("n_averaged")]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        groups = trainer.optimizers[0].param_groups
        for average in self.resumed:
            rates = [group["lr"] for group in groups]
            average.on_train_epoch_start(trainer, pl_module)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == trainer.max_epochs and self.averages(trainer):
            self.save(trainer)
