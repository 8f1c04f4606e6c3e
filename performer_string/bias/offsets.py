"""Offsets between the positions of tokens, a mask of the tokens that have one, and a check of the number of axes."""

from __future__ import annotations

import torch
from torch import Tensor


def pairwise_offsets(positions: Tensor) -> Tensor:
    """Return p_i - p_j for all pairs, [N, C] -> [N, N, C].

    Raises:
        ValueError: positions of other than two axes.
    """
    if positions.ndim != 2:
        raise ValueError(
            f"a relative bias takes positions [N, C] that all samples share, not {list(positions.shape)}: pack samples "
            f"that have positions of their own (cu_seqlens, or the lengths of a TokenLayout)."
        )
    return positions[:, None] - positions  # not cdist, whose gradient is NaN at 0


def both_have_positions(positions: Tensor, num_prefix: int) -> Tensor:
    """Return a mask of the pairs in which both tokens have a position, [N, N]; the first `num_prefix` have none."""
    is_patch = torch.arange(positions.shape[0], device=positions.device) >= num_prefix
    return is_patch & is_patch[:, None]


def check_axes(widths: int, axes: int) -> None:
    """Raise a ValueError where a decay has widths for some axes, and positions have another number of axes."""
    if widths != axes or not widths:
        raise ValueError(
            f"the decay has a sigma for each of {widths} axes, and positions have {axes}: give as many sigmas, or one "
            f"number for all axes together."
        )
