"""Initial weights of a model: each component has a stream of random numbers of its own.

A change of one component (another encoding, a value map) leaves the initial weights of all others as they are. So
models are paired seed by seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from performer_string.bias import RelativeBias
from performer_string.layers.attention_backend import AttentionBackend
from performer_string.layers.values import ValueMap
from performer_string.position import Encoding
from performer_string.utils.seeds import seeded

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT

PARTS = (AttentionBackend, Encoding, RelativeBias, ValueMap)


@torch.no_grad()
def initialise(model: ViT, stream: int) -> None:
    """Draw the weights of linear layers and prefix tokens: normal with deviation 0.02, truncated for linear layers.

    Linear layers within a backend, an encoding, a relative bias or a value map stay as its constructor made them. They
    are the user's own: those of the library have none.

    Args:
        model: model to initialise, in place.
        stream: seed of the streams, each of which has the name of its module in it.
    """
    own = {id(module) for part in model.modules() if isinstance(part, PARTS) for module in part.modules()}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and id(module) not in own:
            with seeded(stream, name):
                nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if model.prefix is not None:
        with seeded(stream, "prefix"):
            nn.init.normal_(model.prefix, std=0.02)
    if model.config.mimetic_init:
        for attention in model.attentions():
            attention.tie_keys_to_queries()
