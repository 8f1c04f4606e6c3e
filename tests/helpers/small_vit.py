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


def vit(**changes) -> ViT:
    return ViT(replace(SMALL, **changes))


def large(model: ViT) -> ViT:
    """Large enough weights for attention to reach the logits."""
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.double().eval()
