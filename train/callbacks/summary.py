"""A one-line summary of the model at the start of a training run."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info

from performer_string import ViT
from performer_string.models.files.card import describe_attention
from train.data.sizes import Size
from train.inspection import multiplications


def describe(vit: ViT) -> str:
    """Return a model's parameters, multiplications and tokens for an image of the training size, as text."""
    config, total = vit.config, sum(p.numel() for p in vit.parameters())
    frozen = sum(p.numel() for p in vit.parameters() if not p.requires_grad)
    image = config.image_size if isinstance(config.image_size, list) else [config.image_size] * len(vit.patch)
    size = str(Size(*image))
    counted = multiplications(vit, image)
    operations = "GMACs not counted" if counted is None else f"{counted / 1e9:.3g} GMACs"
    parameters = f"{total / 1e6:.3g} M parameters" + (f" ({frozen / 1e6:.3g} M frozen)" if frozen else "")
    tokens = math.prod(vit.grid(*image)) + vit.num_prefix
    kind = describe_attention(config)
    return f"{parameters}, {operations} an image of {size} px, {tokens} tokens; {kind}, encoding {config.encoding}"


def images_of_a_step(trainer: L.Trainer, data: Any = None) -> str:
    """Return the number of images of a step and its factors; empty where a step is one batch of one process.

    Args:
        trainer: trainer of the training.
        data: its data module; by default that of the trainer, which has it when the training begins.
    """
    batch: int = getattr(data or trainer.datamodule, "batch_size", 0)  # type: ignore[attr-defined]
    counts = {"processes": trainer.world_size, "batches": trainer.accumulate_grad_batches}
    factors = [f"{count} {name}" for name, count in counts.items() if count > 1]
    if not batch or not factors:
        return ""
    return f"{batch * math.prod(counts.values())} images, {' x '.join([f'{batch} images', *factors])}"


class SummaryLine(Callback):
    """Print a one-line summary of the model."""

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            rank_zero_info(f"Model: {describe(module.vit)}.")  # type: ignore[arg-type]
            if step := images_of_a_step(trainer):
                rank_zero_info(f"Step: {step}.")
            pixels = getattr(trainer.datamodule, "pixels", None)  # type: ignore[attr-defined]
            if pixels is not None and pixels.measured:
                rank_zero_info(f"Pixels: {pixels.describe()}.")
