"""Dense prediction by overlapping tiles, as is usual where a model does not take the whole image."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

BATCH = 16  # tiles at a time
SHARPNESS = 8.0  # side of a tile over the standard deviation of its Gaussian weights


def check_overlap(overlap: float) -> None:
    """Raise a ValueError for an option `--overlap` out of range."""
    if not 0 <= overlap < 1:
        raise ValueError(f"--overlap is the share of a tile, 0 or more and below 1, not {overlap:g}.")


def starts(side: int, tile: int, step: int) -> list[int]:
    """Return the offsets of tiles along a side: every `step` pixels, and a last tile that ends with the side."""
    last = side - tile
    return [*range(0, last, step), last]


def weights_in(tile: int) -> Tensor:
    """Return Gaussian weights [tile, tile] with their maximum at the centre, as in nnU-Net.

    Their standard deviation is an eighth of the tile (doi:10.1038/s41592-020-01008-z).
    """
    offset = torch.arange(tile) + 0.5 - tile / 2
    along = torch.exp(-0.5 * (offset * SHARPNESS / tile) ** 2)
    return along[:, None] * along


@torch.inference_mode()
def predict_tiles(model: Callable[[Tensor], Tensor], image: Tensor, tile: int, overlap: float) -> Tensor:
    """Return class probabilities for each pixel, the weighted mean over the tiles that contain it.

    Args:
        model: function from images [B, C, tile, tile] to logits [B, K, tile, tile].
        image: image, [1, C, H, W], with no side shorter than a tile.
        tile: side of the tiles in pixels.
        overlap: share of a tile that the next one overlaps, in [0, 1).

    Returns:
        Probabilities, [1, K, H, W].
    """
    height, width = image.shape[-2:]
    step = max(1, math.floor(tile * (1 - overlap)))
    corners = [(top, left) for top in starts(height, tile, step) for left in starts(width, tile, step)]
    weights, total = weights_in(tile).to(image), None
    shared = torch.zeros(height, width).to(image)
    for begin in range(0, len(corners), BATCH):
        part = corners[begin : begin + BATCH]
        tiles = torch.cat([image[..., y : y + tile, x : x + tile] for y, x in part])
        answers = model(tiles).float().softmax(1) * weights  # [B, K, tile, tile]
        if total is None:
            total = answers.new_zeros(answers.shape[1], height, width)
        for (y, x), answer in zip(part, answers, strict=True):
            total[:, y : y + tile, x : x + tile] += answer
            shared[y : y + tile, x : x + tile] += weights
    assert total is not None
    return (total / shared)[None]
