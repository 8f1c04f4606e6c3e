"""Suggest a learning rate by a range test: a few steps at growing rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf, isfinite
from typing import Any, NamedTuple

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback

from train.callbacks.progress import progress_bar
from train.command.dry_run import open_images, quiet
from train.data.module import ImageData
from train.module import NonFiniteLossError

RATES: list[float] = np.geomspace(1e-6, 1.0, 100).tolist()  # the rate of each step
EXPLODED = 4  # multiple of the lowest mean loss that ends the test, as in Lightning's `LearningRateFinder`
WINDOWS = 10  # number of means over all steps
CLEAR = 5  # fall of the mean loss that counts as one, in standard deviations of a mean
ROWS = 10  # number of rows of the printed curve
NO_RATE = (
    "No rate found: too few steps, or the loss did not clearly fall. Give more steps, a larger batch or more images."
)


class RangeTest(NamedTuple):
    """Result of a range test.

    Attributes:
        rates: centres of the means, tested learning rates in ascending order.
        losses: mean losses around these rates.
        suggestion: rate at which the loss falls fastest; None where it does not clearly fall.
    """

    rates: list[float]
    losses: list[float]
    suggestion: float | None

    def __str__(self) -> str:
        every = max(1, len(self.rates) // ROWS)
        pairs = zip(self.rates[::every], self.losses[::every], strict=True)
        curve = "\n".join(["      rate  loss", *(f"{rate:10.2e}  {loss:.4f}" for rate, loss in pairs)])
        suggestion = NO_RATE if self.suggestion is None else f"Suggestion: --model.optim.lr {self.suggestion:.2g}"
        return f"{curve}\n\n{suggestion}"


class GrowingRate(Callback):
    """Give each step the next of `RATES`, and record its loss, until the loss explodes."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.lowest = inf  # mean over a window

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = RATES[trainer.global_step]

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == len(self.losses):  # gradients accumulate
            return
        self.losses.append(float(outputs["loss"]))
        mean = float(np.mean(self.losses[-len(RATES) // WINDOWS :]))
        self.lowest = min(self.lowest, mean)
        trainer.should_stop = mean > EXPLODED * self.lowest


def range_test(module: L.LightningModule, data: ImageData, settings: Mapping[str, Any]) -> RangeTest:
    """Train a model for a few steps at growing learning rates (range test, Smith, arXiv:1506.01186).

    The suggested rate is a starting point. The best rate for a few steps from the initial weights need not be the best
    for a training run.

    Args:
        module: classifier, whose weights are changed.
        data: data module.
        settings: settings of the trainer.
    """
    open_images(module, data)
    of_training = ("accelerator", "precision", "accumulate_grad_batches", "gradient_clip_val")
    chosen = {name: settings[name] for name in (*of_training, "gradient_clip_algorithm")}
    chosen |= {"devices": 1, "logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    test = GrowingRate()
    with quiet(), suppress(NonFiniteLossError):  # over as many epochs as the steps take
        trainer = L.Trainer(**chosen, max_steps=len(RATES), limit_val_batches=0, callbacks=[test, progress_bar()])
        trainer.fit(module, datamodule=data)
    return suggest(RATES[: len(test.losses)], test.losses)


def suggest(rates: Sequence[float], losses: Sequence[float]) -> RangeTest:
    """Suggest the rate at which the loss falls fastest over the logarithm of the rate, below the rate of the lowest.

    Losses of single steps are noisy. So means over a tenth of the steps are compared, each with the one that begins
    where it ends, and the lowest mean has to be below the first by more than their noise.

    Args:
        rates: tested learning rates in ascending order, at equal ratios.
        losses: loss of the step at each rate; those that are not finite are left out.
    """
    pairs = np.array([pair for pair in zip(rates, losses, strict=True) if isfinite(pair[1])]).reshape(-1, 2)
    width = max(1, len(pairs) // WINDOWS)
    if len(pairs) < 2 * width + 1:
        return RangeTest(list(rates), list(losses), None)
    weights = np.full(width, 1 / width)
    centres = np.exp(np.convolve(np.log(pairs[:, 0]), weights, "valid"))
    means = np.convolve(pairs[:, 1], weights, "valid")
    lowest = int(means.argmin())
    noise = np.median(np.abs(np.diff(pairs[:, 1]))) / np.sqrt(width)  # the median is close to one standard deviation
    suggestion = None
    if lowest >= width and means[0] - means[lowest] > CLEAR * noise:
        falls = means[: lowest - width + 1] - means[width : lowest + 1]
        suggestion = float(pairs[width + int(falls.argmax()), 0])
    return RangeTest(centres.tolist(), means.tolist(), suggestion)
