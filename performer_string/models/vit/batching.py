"""Images of several sizes as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.models.vit.model import ViT
from performer_string.models.vit.patches import check_alike
from performer_string.position.grid import grid_positions, grid_steps


def batch_images(vit: ViT, images: Sequence[Tensor]) -> dict[str, Tensor]:
    """Pad images of several sizes to one batch, with a mask and, where needed, positions of their patches.

    `vit(**batch_images(vit, images))` has a row for each image, equal to `vit(image[None])` but for rounding, gradients
    included, and but for the approximation of a distance decay, which may differ with the size of the batch. Each image
    is padded at the end of its axes to the largest size of the batch. Padding takes as long as
    patches do, so that images of similar sizes belong together. `vit(images)` with the list packs them without padding.

    Args:
        vit: model, whose patches divide the images.
        images: input images, [channels, height, width] each (or of the axes that the model takes), of one type and
            device.

    Returns:
        images: padded images, [B, channels, height, width].
        patch_mask: mask of the patches, [B, N], False where a patch is padding; left out where all images are of one
            size.
        positions: positions of the patches, [B, N, C], left out where those of the padded grid serve. With positions
            interpolated, and with `absolute` ones, the position of a patch depends on the size of its image. A
            relative bias, which needs one grid for all images, is then an error of the model.

    Raises:
        ValueError: no images, images of several channels, types or devices, or ones that the patches do not divide.
            Also several sizes for a model with an absolute table and an encoding that have different positions.
    """
    check_alike(images, len(vit.patch))
    grids = [vit.grid(*image.shape[1:]) for image in images]
    if vit.absolute is not None and not vit.table_shares_positions() and len(set(grids)) > 1:
        raise ValueError(
            "a patch of this model has one position in its absolute table, by the size of the image, and another one "
            "for its rotation, and a batch has one for both: pass the images as a list, which packs them."
        )
    largest = [max(sizes) for sizes in zip(*grids, strict=True)]

    def pad(x: Tensor, scale: Sequence[int]) -> Tensor:
        """Return x padded with zeros, [.., *sizes] -> [.., *largest]; a patch has `scale` entries along each axis."""
        missing = [n * s - size for n, s, size in zip(largest, scale, x.shape[-len(scale) :], strict=True)]
        return F.pad(x, [amount for m in reversed(missing) for amount in (0, m)])  # the last axis first

    def extended_positions(grid: tuple[int, ...]) -> Tensor:
        """Return the positions on an image's grid, continued over the largest one: [N, C]."""
        positions = vit.grid_positions(grid, images[0].device)
        steps = positions.new_tensor(grid_steps(grid, *vit.position_mode()))
        return positions[0] + grid_positions(largest, device=positions.device, dtype=positions.dtype) * steps

    batch = {"images": torch.stack([pad(image, vit.patch) for image in images])}
    if len(set(grids)) > 1:
        ones = [1] * len(vit.patch)
        masks = [torch.ones(grid, dtype=torch.bool, device=images[0].device) for grid in grids]
        batch["patch_mask"] = torch.stack([pad(mask, ones).flatten() for mask in masks])
        if vit.position_mode()[0] != "extrapolate":
            batch["positions"] = torch.stack([extended_positions(grid) for grid in grids])
    return batch
