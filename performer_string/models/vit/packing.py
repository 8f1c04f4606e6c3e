"""Images of several sizes, packed along the axis of tokens, so that nothing is computed for padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from performer_string.models.vit.patches import check_alike, check_images, check_list, embed_patches, patchify
from performer_string.ops.layout import TokenLayout
from performer_string.position.rotation import Rotation

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT


def packed_features(vit: ViT, images: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of the last norm for each image, prefix tokens first: [P + N_i, D] each.

    They are those of `vit.forward_features(image[None])[0]`, gradients included, in one pass over all tokens.

    Args:
        vit: model, whose patches divide the images.
        images: input images, [channels, height, width] each (or of the axes that the model takes), of one type and
            device.

    Raises:
        ValueError: no images, images of several channels, types or devices, or ones that the patches do not divide.
    """
    x, rotations, layout = packed_stem(vit, images)
    for block, rotation in zip(vit.blocks, rotations, strict=True):
        x = vit.apply_block(block, x, rotation, layout)
    assert layout.lengths is not None
    return list(vit.norm(x)[0].split(list(layout.lengths)))  # [1, sum of P + N_i, D]


def forward_packed(vit: ViT, images: Sequence[Tensor], positions: object = None, patch_mask: object = None) -> Tensor:
    """Return logits [B, classes] of images of several sizes; for the images see `packed_features`.

    Only the pooling at the end sees a padded batch.

    Raises:
        TypeError: images that are no list of tensors.
        ValueError: positions or a mask, which are for a batch.
    """
    check_list(images)
    if positions is not None or patch_mask is not None:
        raise ValueError(
            "a list of images has the positions of its grids and no padding. Leave the other arguments out, or take "
            "batch_images(model, images) with other positions, [B, N, C]."
        )
    features = packed_features(vit, images)
    padded = pad_sequence(features, batch_first=True)  # [B, P + N, D]
    counts = torch.tensor([len(each) for each in features], device=padded.device)
    mask = torch.arange(padded.shape[1], device=padded.device) < counts[:, None]  # [B, P + N]
    return vit.forward_head(padded, patch_mask=mask[:, vit.num_prefix :])


def packed_stem(vit: ViT, images: Sequence[Tensor]) -> tuple[Tensor, list[Rotation | None], TokenLayout]:
    """Return the inputs of the blocks: tokens [1, sum of P + N_i, D], the rotation of each layer, and their layout."""
    check_alike(images)
    if vit.config.mask_blank_patches:
        raise ValueError(
            "packed images have no mask, which mask_blank_patches needs: model(**batch_images(model, images)) takes "
            "images of several sizes."
        )
    for image in images:
        check_images(image[None], vit.config.in_channels, len(vit.patch))
    grids = [vit.grid(*image.shape[1:]) for image in images]
    layouts = {grid: vit.layout(grid) for grid in set(grids)}
    centred = [layouts[grid].centred_positions() for grid in grids]  # [P + N_i, C] each
    pixels = torch.cat([patchify(image[None], vit.patch) for image in images], dim=1)  # [1, sum of N_i, channels p q]
    lengths = [len(positions) for positions in centred]
    patches = torch.cat([positions[vit.num_prefix :] for positions in centred])  # [sum of N_i, C]
    counts = [length - vit.num_prefix for length in lengths]
    in_table = [vit.table_positions(grid) for grid in grids]
    table = None if in_table[0] is None else torch.cat(cast(list[Tensor], in_table))  # [sum of N_i, C]
    x = embed_patches(vit, pixels.to(vit.norm.weight.dtype), patches, table, counts)
    regular = tuple(layouts[grid].grid for grid in grids)
    layout = TokenLayout(torch.cat(centred), None, vit.num_prefix, lengths=tuple(lengths), grids_of=regular)
    return x, vit.rotations(layout), layout
