"""A head for dense prediction: logits of every pixel from the features of the patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F


class DenseHead(nn.Module):
    """One upsampling block: each patch to pixels of half resolution, a convolution over them, and logits of all pixels.

    A linear layer gives every patch its own grid of hidden features (sub-pixel convolution, arXiv:1609.05158). It has
    half the resolution of the image where the patch is even, else the whole one. A 3 x 3 convolution joins patches at
    their borders, and its logits are interpolated bilinearly to the size of the image. Its receptive field is that of
    the patches next to a pixel: all that comes from further away comes through the ViT.

    Args:
        width: width D of the tokens.
        num_classes: number K of classes.
        patch: height and width of a patch in pixels.

    Raises:
        ValueError: no classes, or patches that are not of two dimensions.
    """

    def __init__(self, width: int, num_classes: int, patch: Sequence[int]):
        super().__init__()
        if len(patch) != 2 or num_classes < 1:
            raise ValueError(
                f"a dense head is for images with num_classes of 1 or more, not for {num_classes} with patches of "
                f"{len(patch)} dimensions."
            )
        self.scale = tuple(2 if side % 2 == 0 else 1 for side in patch)
        self.cells = tuple(side // scale for side, scale in zip(patch, self.scale, strict=True))
        hidden = max(8, width // 4)
        self.up = nn.Linear(width, hidden * self.cells[0] * self.cells[1])
        self.out = nn.Conv2d(hidden, num_classes, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits.

        Args:
            features: features of the patches, [B, D, h, w].

        Returns:
            Logits, [B, K, h p, w q] for patches of p x q pixels.
        """
        rows, columns = self.cells
        x = self.up(features.movedim(1, -1))  # [B, h, w, hidden p' q']
        x = rearrange(x, "b h w (c p q) -> b c (h p) (w q)", p=rows, q=columns)
        logits: Tensor = self.out(F.gelu(x))
        if self.scale == (1, 1):
            return logits
        scale = [float(factor) for factor in self.scale]
        return F.interpolate(logits, scale_factor=scale, mode="bilinear", align_corners=False)

    def forward_padded(self, features: Tensor, mask: Tensor) -> Tensor:
        """Return logits of images that are padded at the end of their axes, with zeros for the padding.

        The head joins neighbouring patches, so that each image goes through it without its padding.

        Args:
            features: features of the patches, [B, D, h, w].
            mask: mask of the patches, [B, h, w], True for patches to attend to.

        Returns:
            Logits, [B, K, h p, w q].

        Raises:
            ValueError: a mask that is not a rectangle in the upper left corner of each image.
        """
        padded = []
        for image, inside in zip(features, mask, strict=True):
            rows, columns = int(inside.any(1).sum()), int(inside.any(0).sum())
            if not rows or not bool(inside[:rows, :columns].all()):
                raise ValueError(
                    "a dense head takes a patch_mask of padding at the end of the axes, as batch_images makes it: a "
                    "mask with gaps would mix the patches beside them."
                )
            logits = self(image[None, :, :rows, :columns])
            p, q = logits.shape[2] // rows, logits.shape[3] // columns  # pixels of a patch
            padded.append(F.pad(logits, (0, q * (len(inside[0]) - columns), 0, p * (len(inside) - rows))))
        return torch.cat(padded) if padded else cast(Tensor, self(features))


def build_head(kind: str, width: int, num_classes: int, patch: Sequence[int]) -> nn.Module:
    """Return the head of a model, of the kind `class` or `dense`; the identity without classes."""
    if kind == "dense":
        return DenseHead(width, num_classes, patch)
    return nn.Linear(width, num_classes) if num_classes else nn.Identity()
