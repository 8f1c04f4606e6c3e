"""Images cut into patches, in any number of dimensions, and the tokens of a model made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT

# A resized image of one colour differs from it by rounding. Two of 256 greys are some 0.01 apart once normalised.
SAME_VALUE = 1e-4


def check_images(images: Tensor, channels: int, axes: int) -> None:
    """Raise an error unless images are floats [B, channels, *sizes] with this number of axes."""
    if isinstance(images, list | tuple):
        raise TypeError(
            "images must be one tensor here, not a list: batch_images(model, images) pads them to one batch, and "
            "packed_features(model, images) and model(images) take the list."
        )
    if images.ndim != 2 + axes or images.shape[1] != channels:
        sizes = "height, width" if axes == 2 else f"and {axes} sizes"
        raise ValueError(f"images must be [B, {channels}, {sizes}], not {list(images.shape)}.")
    if not images.is_floating_point():
        raise TypeError(f"images must be floating-point, normalised as in training, not {images.dtype}.")


def check_list(images: object) -> None:
    """Raise a TypeError unless images, which are no tensor, are a list of tensors."""
    each = images if isinstance(images, list | tuple) else [images]
    wrong = {type(image).__name__ for image in each if not isinstance(image, Tensor)}
    if not wrong and isinstance(images, list | tuple):
        return
    hint = " torch.fx cannot trace a grid of any size: use torch.export." if "Proxy" in wrong else ""
    kind = f"{type(images).__name__} of {', '.join(sorted(wrong))}" if each is images else type(images).__name__
    article = "an" if kind[0] in "AEIO" else "a"
    raise TypeError(f"images must be a tensor, or a list of tensors, not {article} {kind}.{hint}")


def check_alike(images: Sequence[Tensor], axes: int) -> None:
    """Raise a ValueError unless images [channels, *sizes] with this number of axes are one or more, of the same
    channels, type and device."""
    if not len(images):
        raise ValueError("a batch must hold one image or more.")
    batch = next((list(image.shape) for image in images if image.ndim == 2 + axes), None)
    if batch is not None:
        raise ValueError(
            f"a list must hold single images [channels, *sizes], and {batch} is a batch: unpack it, as in [*large, "
            f"*small] for crops of two sizes."
        )
    kinds = {(image.ndim, *image.shape[:1], image.dtype, image.device): image for image in reversed(images)}
    if len(kinds) > 1:  # the first image of each kind, and not each of a large batch
        listed = "; ".join(f"{list(image.shape)} {image.dtype} {image.device}" for image in reversed(kinds.values()))
        raise ValueError(
            f"the images of a batch must be [channels, *sizes] of the same channels, type and device, not {listed}."
        )


def check_patch_positions(positions: Tensor | None, batch: int, grid: Sequence[int]) -> None:
    """Raise a ValueError unless positions, where they are given, are [N, C] or [B, N, C] for the patches of a grid."""
    patches = math.prod(grid)
    if positions is not None and tuple(positions.shape[:-1]) not in ((patches,), (batch, patches)):
        raise ValueError(
            f"positions must be [N, C], or [B, N, C] for each of the {batch} images, with one row for each of the "
            f"{' x '.join(map(str, grid))} patches, not {list(positions.shape)}."
        )


def patchify(images: Tensor, patch: Sequence[int]) -> Tensor:
    """Return the pixels of each patch: [B, channels, height, width] -> [B, N, channels p q], in any dimension."""
    axes = range(len(patch))
    image, cells, pixels = (" ".join(form.format(i) for i in axes) for form in ("(n{0} p{0})", "n{0}", "p{0}"))
    return rearrange(images, f"b c {image} -> b ({cells}) (c {pixels})", **{f"p{i}": patch[i] for i in axes})


def blank_patches(images: Tensor, patch: Sequence[int]) -> Tensor:
    """Return a mask of the patches in which each channel has one value, [B, N], for images [B, channels, *sizes].

    Values may differ by up to `SAME_VALUE`.
    """
    pixels = patchify(images, patch).unflatten(-1, (images.shape[1], -1))  # [B, N, channels, p q]
    return (pixels.amax(-1) - pixels.amin(-1) <= SAME_VALUE).all(-1)


def embed_patches(
    vit: ViT, pixels: Tensor, positions: Tensor, table_positions: Tensor | None, counts: Sequence[int] | None = None
) -> Tensor:
    """Return tokens with position embeddings and dropout, and prefix tokens before those of each image.

    Args:
        vit: model that embeds the patches.
        pixels: pixels of the patches, [B, N, channels p q], in the type of the weights.
        positions: positions of the patches, [N, C] or [B, N, C].
        table_positions: positions of the patches in the table beside the encoding, where the model has one.
        counts: number of patches of each image that is packed in a batch of one; None for one image per sample.

    Returns:
        Tokens, [B, P + N, D], or [1, sum of P + N_i, D].
    """
    x = vit.embed(pixels)  # [B, N, D]
    embedding = vit.encoding.embedding(vit.in_units(positions))
    x = x if embedding is None else x + embedding.to(x.dtype)
    if vit.absolute is not None:
        assert table_positions is not None
        x = x + vit.absolute.embedding(table_positions).to(x.dtype)
    if vit.prefix is not None:
        prefix = vit.prefix.expand(x.shape[0], -1, -1).to(x.dtype)
        images = [x] if counts is None else x.split(list(counts), dim=1)
        x = torch.cat([part for each in images for part in (prefix, each)], dim=1)
    return vit.embed_dropout(x)
