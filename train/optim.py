"""Settings of a training, its optimisers by name, and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.optim import AdamW, Optimizer

from performer_string.utils.validation import check_types
from train.utils.ranges import check_range


@dataclass
class OptimConfig:
    """Settings of a training run.

    Attributes:
        optimizer: name of the optimiser in `OPTIMIZERS`: `adamw`, `lamb`, or one of your own. It is looked up when a
            training begins, so that a trained model loads without your module.
        lr: peak learning rate, of AdamW typically 1e-4 to a few 1e-3.
        weight_decay: weight decay of linear layers; norms, biases, embeddings and generators have none.
        decay_all: whether these have weight decay too, as in `torch.optim.AdamW` with a single list of parameters.
        betas: betas of AdamW.
        warmup: share of the training for the linear warm-up of the learning rate from zero.
        min_lr: final share of `lr` after the cosine; 1 for a constant rate, with `warmup` 0 from the first step.
        encoding_lr: peak learning rate of the encoding's parameters; none for `lr`.
        encoding_weight_decay: weight decay of the encoding's parameters, decoupled as in AdamW.
        encoding_l2: factor of the sum of squares of the encoding's parameters in the loss.
        label_smoothing: label smoothing of the loss, in [0, 1).
        mixup: alpha of mixup (arXiv:1710.09412), 0 for none.
        cutmix: alpha of cutmix (arXiv:1905.04899), 0 for none. With both, each batch gets a random one.
        train_only: parts of the model that are trained, by the beginnings of parameter names: `[head]` for a linear
            probe, `[head, norm, blocks.3]`. Empty for the whole model.
        layer_decay: factor of the learning rate from each block to the one before it, as in BEiT (arXiv:2106.08254);
            1 for one rate. The head and learned frequencies have the full rate, the patch embedding the lowest.
        grad_checkpointing: whether to keep the inputs of blocks alone for the backward pass, which computes the rest
            again: less memory for more time.
        redraw_every: number of steps between new draws of random features, 0 for never.
        image_scale: largest factor by which each step resizes its images, log-uniform between the inverse of this and
            itself, rounded to whole patches, the same on all processes; 1 for none. Not for the arrow task, whose
            cells are patches.
        randomized_positions: relative side of a larger grid, of whose positions the patches get a random increasing
            subset along each axis; 1 for none (arXiv:2305.16843).
        randomized_positions_min: least relative side of that grid, which each step draws uniformly from here to
            `randomized_positions`; none for always `randomized_positions`.
        position_scale: largest factor of the positions, log-uniform between its inverse and itself; 1 for none.
        position_offset: largest common translation of the positions along each axis in patches, 0 for none. It has no
            effect on an exactly invariant model, but on one draw of random features or an additive encoding.
    """

    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    decay_all: bool = False
    betas: tuple[float, float] = (0.9, 0.98)
    warmup: float = 0.1
    min_lr: float = 0.01
    encoding_lr: float | None = None
    encoding_weight_decay: float = 0.0
    encoding_l2: float = 0.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    train_only: list[str] = field(default_factory=list)
    layer_decay: float = 1.0
    grad_checkpointing: bool = False
    redraw_every: int = 0
    image_scale: float = 1.0
    randomized_positions: float = 1.0
    randomized_positions_min: float | None = None
    position_scale: float = 1.0
    position_offset: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        self.betas = (self.betas[0], self.betas[1])
        check_range(self, "lr", "encoding_lr", above=0)
        check_range(self, "weight_decay", "encoding_weight_decay", "encoding_l2", "mixup", "cutmix", least=0)
        check_range(self, "redraw_every", "position_offset", least=0)
        check_range(self, "warmup", "label_smoothing", least=0, below=1)
        check_range(self, "layer_decay", above=0, most=1)
        check_range(self, "min_lr", least=0, most=1)
        check_range(self, "image_scale", "randomized_positions", "position_scale", least=1)
        check_range(self, "randomized_positions_min", least=1, below=self.randomized_positions)


def lamb(groups: list[dict[str, Any]], config: OptimConfig) -> Optimizer:
    """Return LAMB (arXiv:1904.00962) of timm, for large batches."""
    from timm.optim import Lamb  # here, since it takes a second to import

    return Lamb(groups, lr=config.lr, betas=config.betas)


# Functions of parameter groups, with the weight decay of each and the rates of some, and of the settings.
OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], OptimConfig], Optimizer]] = {
    "adamw": lambda groups, config: AdamW(groups, lr=config.lr, betas=config.betas),
    "lamb": lamb,
}


def learning_rate(step: int, steps: float, warmup: float, minimum: float) -> float:
    """Return the learning rate as a share of its peak: a linear warm-up to 1, then a cosine down to `minimum`.

    Args:
        step: index of the optimiser step, from 0.
        steps: number of steps of the whole training run.
        warmup: share of the training for the warm-up.
        minimum: share of the peak at the end.
    """
    rise = max(1.0, warmup * steps)
    if step < rise:
        return min(1.0, (step + 1) / rise)  # the last step of a fractional warm-up would exceed the peak
    done = min(1.0, (step - rise) / max(1.0, steps - rise))
    return minimum + (1 - minimum) * (1 + math.cos(math.pi * done)) / 2
