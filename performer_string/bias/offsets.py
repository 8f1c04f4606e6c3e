"""Offsets between the positions of tokens, and which tokens have a position."""

from __future__ import annotations

import torch
from torch import Tensor


def pairwise_offsets(positions: Tensor) -> Tensor:
    """Return p_i - p_j for all pairs, [N, C] -> [N, N, C].

    Raises:
        ValueError: positions of other than two axes.
    """
    if positions.ndim != 2:
        raise ValueError(f"positions have to be [N, C], not {list(positions.shape)}.")
    return positions[:, None] - positions  # not cdist, whose gradient is NaN at 0


def both_have_positions(positions: Tensor, num_prefix: int) -> Tensor:
    """Return which pairs are of two tokens with a position, [N, N]; the first `num_prefix` have none."""
    is_patch = torch.arange(positions.shape[0], device=positions.device) >= num_prefix
    return is_patch & is_patch[:, None]
