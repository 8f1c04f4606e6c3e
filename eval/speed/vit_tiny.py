"""The methods of `eval length` as one layer of a ViT-tiny, and as a whole ViT-tiny."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from eval.speed.measure import CachedCall
from eval.speed.methods import NARROW, feature_options
from performer_string import ViT, ViTConfig
from performer_string.layers.block import Block

PATCH = 16


def vit_tiny(method: str, options: argparse.Namespace, grid: tuple[int, int], device: torch.device) -> ViT:
    """Build a ViT-tiny in evaluation mode with a method; all methods have the same weights."""
    torch.manual_seed(0)
    with_decay = method == "linear+lf"
    features = "favor+" if method == "performer-pytorch" else options.feature_map
    config = ViTConfig(
        image_size=[PATCH * n for n in grid],
        patch_size=PATCH,
        variant="tiny",
        attention=method.split("+")[0],
        qk_dim=options.qk_dim if method == NARROW else None,
        feature_map=features,
        feature_options=feature_options(features, options.features),
        locality="gaussian" if with_decay else None,
        locality_options={"sigma": options.sigma} if with_decay else {},
    )
    return ViT(config).to(device, getattr(torch, options.dtype)).eval()


def layer_call(
    method: str, options: argparse.Namespace, grid: tuple[int, int], device: torch.device
) -> Callable[[], Tensor]:
    """Return a function that runs one block (attention and MLP) of a ViT-tiny."""
    vit = vit_tiny(method, options, grid, device)
    torch.manual_seed(math.prod(grid))
    x = torch.randn(
        options.batch_size, math.prod(grid), vit.norm.weight.numel(), device=device, dtype=vit.norm.weight.dtype
    )
    x.requires_grad_(options.backward)
    block = cast(Block, vit.blocks[0])
    layout = vit.layout(grid)

    def call() -> Tensor:
        rotations = vit.rotation_cache.get(grid, lambda: vit.rotations(layout))
        return cast(Tensor, block(x, rotations[0], layout))

    return CachedCall(vit, call)


def model_call(
    method: str, options: argparse.Namespace, grid: tuple[int, int], device: torch.device
) -> Callable[[], Tensor]:
    """Return a function that runs a whole ViT-tiny."""
    vit = vit_tiny(method, options, grid, device)
    torch.manual_seed(math.prod(grid))
    image = torch.randn(options.batch_size, 3, *(PATCH * n for n in grid), device=device, dtype=vit.norm.weight.dtype)
    return CachedCall(vit, partial(vit, image))
