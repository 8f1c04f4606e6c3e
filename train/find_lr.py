"""A learning rate by a range test: short steps at growing rates, by Lightning's tuner, without a training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.tuner import Tuner

from train.data.module import ImageData
from train.dry_run import open_images, quiet

LEAST, MOST, STEPS = 1e-6, 1.0, 100
ROWS = 10  # of the printed curve


def find_lr(module: L.LightningModule, data: ImageData, settings: Mapping[str, Any]) -> str:
    """Return the suggestion of a range test (Smith, arXiv:1506.01186) as text, with the loss at some of the rates.

    The rate grows from step to step. Where the loss falls fastest is the suggestion. It is a starting point: a rate
    that is best for a few steps from the initial weights need not be best for a training.

    Args:
        module: the classifier, whose weights are as before afterwards.
        data: its images.
        settings: of the trainer.
    """
    open_images(module, data)
    of_training = ("accelerator", "precision", "max_epochs", "accumulate_grad_batches", "gradient_clip_val")
    chosen = {name: settings[name] for name in (*of_training, "gradient_clip_algorithm")}
    with tempfile.TemporaryDirectory() as folder, quiet():
        trainer = L.Trainer(
            **chosen, devices=1, logger=False, enable_checkpointing=False, enable_model_summary=False,
            default_root_dir=folder,
        )  # fmt: skip
        finder = Tuner(trainer).lr_find(
            module, datamodule=data, min_lr=LEAST, max_lr=MOST, num_training=STEPS, update_attr=False
        )
    assert finder is not None
    rates, losses = finder.results["lr"], finder.results["loss"]
    suggestion = finder.suggestion()
    if suggestion is None:
        return f"No rate found: the loss has {len(losses)} values only. Give more images or a smaller batch."
    every = max(1, len(rates) // ROWS)
    curve = [f"{rate:10.2e}  {loss:.4f}" for rate, loss in zip(rates[::every], losses[::every], strict=True)]
    return "\n".join(["      rate  loss", *curve, "", f"Suggestion: --model.optim.lr {suggestion:.2g}"])
