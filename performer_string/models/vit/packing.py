"""Images of several sizes, packed along the axis of tokens, so that nothing is computed for padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from performer_string.models.vit.patches import check_alike, check_images, check_list, embed_patches, patchify
from performer_string.ops.layout import Grid, TokenLayout
from performer_string.position.rotation import Rotation

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT


def packed_features(vit: ViT, images: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of the last norm for each image, prefix tokens first: [P + N_i, D] each.

    They are those of `vit.forward_features(image[None])[0]`, gradients included, in one pass over all tokens. With
    `mask_blank_patches` they are those of the patches that take part alone, and nothing is computed for the others.

    Args:
        vit: model, whose patches divide the images.
        images: input images, [channels, height, width] each (or of the axes that the model takes), of one type and
            device.

    Raises:
        ValueError: no images, images of several channels, types or devices, or ones that the patches do not divide; a
            model that leaves blank patches out and has a convolution over neighbours.
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


def packs(vit: ViT) -> bool:
    """Return whether a model takes packed images: not if it leaves patches out of the grid of a convolution."""
    values = [attention.values for attention in vit.attentions()]
    return not (vit.config.mask_blank_patches and any(each is not None and each.convolves for each in values))


def drops_blank_patches(vit: ViT) -> bool:
    """Return whether a model computes nothing for the blank patches of a list of images."""
    return vit.config.mask_blank_patches and packs(vit)


def packed_stem(vit: ViT, images: Sequence[Tensor]) -> tuple[Tensor, list[Rotation | None], TokenLayout]:
    """Return the inputs of the blocks: tokens [1, sum of P + N_i, D], the rotation of each layer, and their layout."""
    check_alike(images, len(vit.patch))
    if not packs(vit):
        raise ValueError(
            "the value map lepe needs all patches of an image, and packed images have none of the blank ones that "
            "mask_blank_patches leaves out: model(**batch_images(model, images)) takes images of several sizes."
        )
    for image in images:
        check_images(image[None], vit.config.in_channels, len(vit.patch))
    grids = [vit.grid(*image.shape[1:]) for image in images]
    whole = {} if vit.config.mask_blank_patches else {grid: vit.layout(grid) for grid in set(grids)}
    parts = [image_tokens(vit, image, grid, whole.get(grid)) for image, grid in zip(images, grids, strict=True)]
    positions = [part.positions for part in parts]
    lengths = [len(each) for each in positions]
    patches = torch.cat([each[vit.num_prefix :] for each in positions])  # [sum of N_i, C]
    counts = [length - vit.num_prefix for length in lengths]
    in_table = [part.in_table for part in parts]
    table = None if in_table[0] is None else torch.cat(cast(list[Tensor], in_table))  # [sum of N_i, C]
    pixels = torch.cat([part.pixels for part in parts])[None].to(vit.norm.weight.dtype)
    x = embed_patches(vit, pixels, patches, table, counts)
    regular = tuple(part.grid for part in parts)
    layout = TokenLayout(torch.cat(positions), None, vit.num_prefix, lengths=tuple(lengths), grids_of=regular)
    return x, vit.rotations(layout), layout


class ImageTokens(NamedTuple):
    """Patches of an image that take part.

    Attributes:
        pixels: pixels of each patch, [N, channels p q].
        positions: positions of the tokens, prefix tokens first, [P + N, C].
        in_table: positions of the patches in the table beside the encoding, [N, C], where the model has one.
        grid: grid of the patches, where all take part.
    """

    pixels: Tensor
    positions: Tensor
    in_table: Tensor | None
    grid: Grid | None


def image_tokens(vit: ViT, image: Tensor, grid: tuple[int, ...], whole: TokenLayout | None) -> ImageTokens:
    """Return the patches of an image [channels, height, width] that take part: all but blank ones that are masked.

    Args:
        vit: the model.
        image: the image.
        grid: number of patches along each axis.
        whole: layout of the grid where all patches take part; None where blank ones are masked.
    """
    pixels, in_table = patchify(image[None], vit.patch)[0], vit.table_positions(grid)
    if whole is not None:
        return ImageTokens(pixels, whole.centred_positions(), in_table, whole.grid)
    mask = vit.participating(image[None])  # [1, N]
    layout = vit.layout(grid, patch_mask=mask)
    assert mask is not None
    assert layout.mask is not None
    positions = layout.centred_positions().expand(1, -1, -1)[0, layout.mask[0]]
    return ImageTokens(pixels[mask[0]], positions, None if in_table is None else in_table[mask[0]], None)
