"""Which weights of a model are trained, with which rate and decay: the parameter groups of the optimiser."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from performer_string.models.vit.model import STEM, ViT
from train.optim import OptimConfig


def in_parts(name: str, parts: list[str]) -> bool:
    """Return whether a parameter belongs to one of the parts of a model, which are beginnings of names."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def check_parts(model: ViT, parts: list[str]) -> None:
    """Check that each part has parameters.

    Raises:
        ValueError: with the parts that there are.
    """
    names = [name for name, _ in model.named_parameters()]
    for part in parts:
        if not any(in_parts(name, [part]) for name in names):
            known = sorted({name.split(".")[0] for name in names})
            raise ValueError(
                f"train_only: no parameter of the model is in {part!r}. Its parts are {', '.join(known)}, and parts of "
                f"these as blocks.0 or blocks.0.attention."
            )


def freeze_others(model: ViT, parts: list[str]) -> None:
    """Freeze all weights but those of the parts; none where no parts are given."""
    for name, weight in model.named_parameters():
        if parts and not in_parts(name, parts):
            weight.requires_grad_(False)


def layers_above(name: str, depth: int) -> int:
    """Return how often `layer_decay` applies to a parameter: the number of layers from the head down to it.

    The norm counts to the last block. The embedding, prefix tokens and tables of positions are below the first block,
    as in timm's groups (`TimmViT.group_matcher`).
    """
    if block := re.match(r"blocks\.(\d+)\.", name):
        return depth - int(block[1])
    if re.match(r"norm\.", name):
        return 1
    return depth + 1 if re.match(STEM, name) else 0


def parameter_groups(model: ViT, config: OptimConfig) -> list[dict[str, Any]]:
    """Return the optimiser's parameter groups: with weight decay, without it, and those of the encoding.

    Norms, biases, embeddings and generators have no decay unless `decay_all`. The encoding has its own group where it
    has its own learning rate or decay. With `layer_decay` the first two are split by layer, the head first.
    """
    undecayed = set() if config.decay_all else model.no_weight_decay()
    own = config.encoding_lr is not None or config.encoding_weight_decay > 0
    groups: dict[tuple[int, str], dict[str, Any]] = {
        (0, "decayed"): {"params": [], "weight_decay": config.weight_decay, "name": "decayed"},
        (0, "undecayed"): {"params": [], "weight_decay": 0.0, "name": "undecayed"},
    }
    encoding: dict[str, Any] = {
        "params": [],
        "weight_decay": config.encoding_weight_decay,
        "name": "encoding",
        "lr": config.encoding_lr or config.lr,
    }
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if own and name.startswith("encoding."):
            encoding["params"].append(parameter)
            continue
        above = layers_above(name, len(model.blocks)) if config.layer_decay < 1 else 0
        kind = "undecayed" if name in undecayed else "decayed"
        if (above, kind) not in groups:
            rate = config.lr * config.layer_decay**above
            layer = {"params": [], "lr": rate, "name": f"{above}_below_the_head"}
            groups[above, kind] = {**groups[0, kind], **layer}
        groups[above, kind]["params"].append(parameter)
    by_layer = [groups[key] for key in sorted(groups)]
    has_own = own and any(name.startswith("encoding.") for name, _ in model.named_parameters())
    return [*by_layer, encoding] if has_own else by_layer


def encoding_penalty(model: ViT, factor: float) -> Tensor:
    """Return the penalty in the loss: a factor times the sum of squares of the encoding's parameters."""
    squares = [p.float().square().sum() for p in model.encoding.parameters() if p.requires_grad]
    return factor * torch.stack(squares).sum() if squares else torch.zeros(())
