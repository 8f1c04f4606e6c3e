"""Random changes in a training step: mixed images, image sizes, and positions of patches."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms import v2

from performer_string import ViT
from train.optim import OptimConfig


def build_mixes(config: OptimConfig, num_classes: int) -> list[v2.Transform]:
    """Return the transforms that mix images and labels, of which each step applies a random one."""
    mixes: list[v2.Transform] = []
    if config.mixup:
        mixes.append(v2.MixUp(alpha=config.mixup, num_classes=num_classes))
    if config.cutmix:
        mixes.append(v2.CutMix(alpha=config.cutmix, num_classes=num_classes))
    return mixes


def mix_images(mixes: list[v2.Transform], images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a step, mixed by a random one of `build_mixes`, or as they are if there is none.

    Args:
        mixes: transforms.
        images: images [B, C, H, W], or videos [B, C, T, H, W], whose frames are mixed alike.
        targets: classes, [B].
    """
    if not mixes:
        return images, targets
    mix = mixes[int(torch.randint(len(mixes), ()))]
    mixed, probabilities = mix(images.flatten(1, -3), targets)  # with frames as channels
    return mixed.view(images.shape), probabilities


def random_size(images: Tensor, vit: ViT, scale: float, seed: int | None = None) -> Tensor:
    """Return the images of a step, resized by a common factor that is log-uniform in [1 / scale, scale].

    Args:
        images: images [B, C, H, W], or videos [B, C, T, H, W], which keep their number of frames.
        vit: the model; the new size is a multiple of its patch size.
        scale: largest factor; 1 for no change.
        seed: seed of the draw, which all processes share so that none waits for a larger size; none for torch's global
            generator, which moves on by one number in any case.
    """
    if scale == 1:
        return images
    exponent = torch.empty(()).uniform_(-1, 1)
    if seed is not None:
        exponent.uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
    factor = scale ** float(exponent)
    sides = zip(images.shape[-2:], vit.patch[-2:], strict=True)
    size = [max(1, round(factor * side / patch)) * patch for side, patch in sides]
    return v2.functional.resize(images, size, antialias=True)


def random_positions(images: Tensor, vit: ViT, config: OptimConfig) -> Tensor | None:
    """Return random positions [N, C] for the patches of all images of a step; None for those of the grid.

    Args:
        images: images, [B, C, H, W].
        vit: the model.
        config: settings with the ranges of the changes.
    """
    if (config.randomized_positions, config.position_scale, config.position_offset) == (1, 1, 0):
        return None
    return jitter_positions(vit.grid_positions(vit.grid(*images.shape[2:])), config).to(images.device)


def jitter_positions(positions: Tensor, config: OptimConfig) -> Tensor:
    """Return randomly changed positions of a grid, in the same order along each axis.

    Random numbers come from torch's global generator on the CPU, which training seeds for each step.

    Args:
        positions: positions of the cells of a grid in patches, [N, C].
        config: settings with the ranges. For `randomized_positions` f, each axis of n cells gets n of the round(f n)
            positions of a larger grid. Scale and offset follow in this order.

    Returns:
        Positions, [N, C].

    Source: randomized positions (arXiv:2305.16843), there for one axis.
    """
    factor, scale, offset = config.randomized_positions, config.position_scale, config.position_offset
    if config.randomized_positions_min is not None:
        factor = float(torch.empty(()).uniform_(config.randomized_positions_min, factor))
    if factor > 1:
        drawn = torch.empty_like(positions)
        for c, axis in enumerate(positions.unbind(-1)):
            cells, index = axis.unique(return_inverse=True)  # index of the sorted coordinates
            chosen = torch.randperm(round(factor * len(cells)))[: len(cells)].sort().values
            drawn[:, c] = chosen.to(axis)[index]
        positions = drawn
    if scale > 1:
        positions = positions * scale ** float(torch.empty(()).uniform_(-1, 1))
    if offset > 0:
        positions = positions + torch.empty(positions.shape[-1]).uniform_(-offset, offset).to(positions)
    return positions
