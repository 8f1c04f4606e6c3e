"""The option for the precision of float32 matrix products on GPUs with tensor cores."""

from __future__ import annotations

from typing import Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

MatmulPrecision = Literal["highest", "high", "medium"] | None
MATMUL_HELP = "of float32 products on a GPU, as torch.set_float32_matmul_precision takes it: high is TF32"
HINT = (
    "float32 products leave the tensor cores of this GPU idle. --trainer.precision bf16-mixed is fastest, and "
    "--matmul_precision high is TF32, with which liere and cayley-string lose digits of their rotations."
)


def choose_matmul_precision(chosen: MatmulPrecision, trainer: Trainer) -> None:
    """Set the precision of float32 products, or report once that a faster one is available.

    Args:
        chosen: precision that the user chose; None for torch's current one.
        trainer: trainer, with its device and precision.
    """
    if chosen is not None:
        torch.set_float32_matmul_precision(chosen)
    device = trainer.strategy.root_device
    exact = trainer.precision == "32-true" and torch.get_float32_matmul_precision() == "highest"
    if chosen is None and exact and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        rank_zero_info(HINT)
