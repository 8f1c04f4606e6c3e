"""A small model of timm's registry, and images for it."""

from __future__ import annotations

import timm
import torch

import performer_string.timm  # noqa: F401  # registers the models

MICRO = "performer_string_micro_patch16_224"
SMALL = {"img_size": 32, "num_classes": 5, "depth": 3, "embed_dim": 24, "num_heads": 2}
SMALL |= {"feature_options": {"num_features": 16}}


def create(**changes):
    torch.manual_seed(0)
    return timm.create_model(MICRO, **{**SMALL, **changes})


def images(height: int = 32, width: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width)
