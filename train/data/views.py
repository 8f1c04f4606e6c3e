"""Several views of a test video: clips from segments of its time, and crops along its longer side."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from performer_string.images.resize import ResizeAndCrop
from train.data.sizes import Views


class Crops:
    """Transform from frames [S * T, C, H, W] to the views of a video, uint8 [V, C, T, *size].

    Crops are spread along the axis on which a frame is longer than `size`; a single crop is central.

    Args:
        size: height and width in pixels.
        views: numbers of segments and crops.
    """

    def __init__(self, size: tuple[int, int], views: Views):
        self.views = views
        count = views.crops
        self.covers = [ResizeAndCrop(size, 0.5 if count == 1 else crop / (count - 1)) for crop in range(count)]

    def __call__(self, frames: Tensor) -> Tensor:
        crops = torch.stack([cover(frames) for cover in self.covers])
        return rearrange(crops, "k (s t) c h w -> (s k) c t h w", s=self.views.segments)
