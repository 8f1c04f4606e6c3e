"""Suggest a learning rate by a range test: a few steps at growing rates, by Lightning's tuner."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any, NamedTuple

import lightning as L
import numpy as np
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities import rank_zero_info

from train.command.dry_run import open_images, quiet
from train.data.module import ImageData

RANGE = {"min_lr": 1e-6, "max_lr": 1.0, "num_training_steps": 100}  # options of --find_lr
SMOOTHING = 0.98  # decay of Lightning's running mean of the losses
WINDOWS = 10  # number of means over all steps
CLEAR = 5  # fall of the mean loss that counts as one, in standard deviations of a mean
ROWS = 10  # number of rows of the printed curve
FINDER = ("lightning", "LearningRateFinder")  # package and class
WITHOUT_MEANING = {"update_attr": True, "attr_name": ""}  # options of the callback, with their defaults
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


def range_test(
    module: L.LightningModule, data: ImageData, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> RangeTest:
    """Train a copy of a model for a few steps at growing learning rates (range test, Smith, arXiv:1506.01186).

    The suggested rate is a starting point. The best rate for a few steps from the initial weights need not be the best
    for a training run.

    Args:
        module: classifier, which is not changed.
        data: data module.
        settings: settings of the trainer.
        options: options `min_lr`, `max_lr`, `num_training_steps`, `mode` and `early_stop_threshold` of Lightning's
            `LearningRateFinder`.
    """
    open_images(module, data)
    of_training = ("accelerator", "precision", "accumulate_grad_batches", "gradient_clip_val")
    chosen = {name: settings[name] for name in (*of_training, "gradient_clip_algorithm")}
    chosen["max_steps"] = options["num_training_steps"]  # over as many epochs as that takes
    options = {("num_training" if name == "num_training_steps" else name): value for name, value in options.items()}
    with tempfile.TemporaryDirectory() as folder, quiet():
        trainer = L.Trainer(
            **chosen, devices=1, logger=False, enable_checkpointing=False, enable_model_summary=False,
            default_root_dir=folder,
        )  # fmt: skip
        finder = Tuner(trainer).lr_find(copy.deepcopy(module), datamodule=data, update_attr=False, **options)
    assert finder is not None
    return suggest(finder.results["lr"], unsmoothed(finder.results["loss"]))


def find_rate(module: Any, data: ImageData, config: Any, options: Mapping[str, Any]) -> None:
    """Choose the learning rate by a range test, and set it in a classifier and the configuration of its run."""
    result = range_test(module, data, config.trainer.as_dict(), options)
    if result.suggestion is None:
        raise ValueError(f"LearningRateFinder: {NO_RATE}")
    config.model.optim.lr = module.optim.lr = module.hparams["optim"]["lr"] = result.suggestion
    rank_zero_info(f"LearningRateFinder: --model.optim.lr {result.suggestion:g}")


def unsmoothed(losses: Sequence[float]) -> list[float]:
    """Return the losses of single steps from Lightning's running means.

    Lightning divides the sum of n losses with weights (1 - b) b^i by 1 - b^(n + 1). Its mean lags behind by some fifty
    steps, so that it still falls at rates at which the loss rises. A loss that is not finite gives NaN.
    """
    singles, last = [], 0.0
    for count, loss in enumerate(losses, start=1):
        total = loss * (1 - SMOOTHING ** (count + 1))
        singles.append((total - SMOOTHING * last) / (1 - SMOOTHING) if isfinite(loss) else nan)
        last = total if isfinite(loss) else last
    return singles


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


def take_finder(trainer: Any) -> dict[str, Any] | None:
    """Remove Lightning's `LearningRateFinder` from the configuration of a trainer, and return its options.

    The test runs before the training instead of within its first step. The run's configuration then has the rate and no
    finder, so that a repeated training is the same.

    Returns:
        The options for `range_test`; None where there is no finder.
    """
    asked = trainer.callbacks or []
    callbacks = asked if isinstance(asked, list) else [asked]
    names = (each.class_path.split(".") for each in callbacks)
    found = [each for each, name in zip(callbacks, names, strict=True) if (name[0], name[-1]) == FINDER]
    if not found:
        return None
    trainer.callbacks = [each for each in callbacks if each not in found] or None
    options: dict[str, Any] = found[-1].init_args.as_dict()
    if any(options.pop(name, value) != value for name, value in WITHOUT_MEANING.items()):
        raise ValueError(
            "LearningRateFinder sets model.optim.lr here: leave out update_attr and attr_name. --find_lr suggests a "
            "rate without setting it."
        )
    return options
