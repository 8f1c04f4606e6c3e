"""A model small enough for every test."""

from __future__ import annotations

from dataclasses import replace

import torch

from performer_string import ViT, ViTConfig

POLYNOMIAL = {"feature_map": "polynomial", "feature_options": {}}
SMALL = ViTConfig(
    image_size=[16, 24],
    patch_size=[4, 8],
    in_channels=2,
    num_classes=5,
    width=24,
    depth=3,
    num_heads=2,
    feature_options={"num_features": 16},
)


def vit(max_dense_tokens: int | None = None, **changes) -> ViT:
    """Return the model; where a number is given, its relative biases go over the grid of more tokens than that."""
    model = ViT(replace(SMALL, **changes))
    for locality in model.localities() if max_dense_tokens is not None else ():
        locality.max_dense_tokens = max_dense_tokens
    return model


def large(model: ViT) -> ViT:
    """Large enough weights for attention to reach the logits."""
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.double().eval()
