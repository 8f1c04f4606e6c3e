"""Images of several sizes as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.models.vit import ViT
from performer_string.position.grid import grid_positions, grid_steps


def batch_images(vit: ViT, images: Sequence[Tensor]) -> dict[str, Tensor]:
    """What a ViT takes for images of several sizes: `vit(**batch_images(vit, images))` has a row for each image, equal
    to `vit(image[None])` but for rounding, gradients included.

    Each is padded at the end of its axes to the largest size of the batch along each. Padding takes as long as patches
    do, so that images of similar sizes belong together.

    Args:
        vit: whose patches divide the images, and whose configuration says where their patches lie.
        images: [channels, height, width] each (or of the axes that the model takes), of one type and device.

    Returns:
        images: [B, channels, height, width].
        patch_mask: [B, N], False where a patch is padding; left out where images are of one size, as positions are.
        positions: [B, N, C], left out where those of the padded grid will do. (With positions interpolated, or
            `absolute` ones, the place of a patch is a matter of the size of its image. A locality, which wants one grid
            for all images, then is an error of the model.)

    Raises:
        ValueError: no images, images of several channels, types or devices, or ones that the patches do not divide.
    """
    if not len(images):
        raise ValueError("a batch has to hold one image or more.")
    kinds = {(image.ndim, len(image), image.dtype, image.device) for image in images}
    if len(kinds) > 1:
        given = "; ".join(f"{list(image.shape)} {image.dtype} {image.device}" for image in images)
        raise ValueError(f"the images of a batch have to be of the same channels, type and device, not {given}.")
    grids = [vit.grid(*image.shape[1:]) for image in images]
    largest = [max(sizes) for sizes in zip(*grids, strict=True)]

    def padded(x: Tensor, scale: Sequence[int]) -> Tensor:
        """[.., *sizes] -> [.., *largest], each axis of which has `scale` entries for a patch."""
        missing = [n * s - have for n, s, have in zip(largest, scale, x.shape[-len(scale) :], strict=True)]
        return F.pad(x, [amount for m in reversed(missing) for amount in (0, m)])  # of the last axis first

    def places(grid: tuple[int, ...]) -> Tensor:
        """Those of an image's own grid, gone on with over the largest: [N, C]."""
        own = vit.grid_positions(grid, images[0].device)
        steps = own.new_tensor(grid_steps(grid, *vit.placing()))
        return own[0] + grid_positions(largest, device=own.device, dtype=own.dtype) * steps

    ones = [1] * len(vit.patch)
    there = [torch.ones(grid, dtype=torch.bool, device=images[0].device) for grid in grids]
    batch = {"images": torch.stack([padded(image, vit.patch) for image in images])}
    if len(set(grids)) > 1:
        batch["patch_mask"] = torch.stack([padded(mask, ones).flatten() for mask in there])
        if vit.placing()[0] != "extrapolate":
            batch["positions"] = torch.stack([places(grid) for grid in grids])
    return batch
