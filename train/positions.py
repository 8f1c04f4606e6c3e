"""Random positions in training, so that a model does not learn the distances of one grid by heart."""

from __future__ import annotations

import torch
from torch import Tensor


def jitter_positions(
    positions: Tensor, frame: float = 1.0, scale: float = 1.0, offset: float = 0.0, frame_min: float | None = None
) -> Tensor:
    """Positions [N, C] of a grid, moved at random as a whole: the order along each axis stays.

    Drawn from torch's global generator on the CPU, which training seeds for each step.

    Args:
        positions: of the cells of a grid, one unit a patch.
        frame: along each axis of n cells, n of the round(frame n) positions of a larger grid at random, in their order
            (Ruoss et al., arXiv:2305.16843, there for one axis). It replaces the positions.
        scale: then one factor for all axes, log-uniform in [1 / scale, scale].
        offset: then a move of each axis, uniform in [-offset, offset].
        frame_min: the frame itself is drawn first, uniform in [frame_min, frame]: with 1, grids as they are, and all
            between, are among the positions. None for `frame`.

    Returns:
        [N, C].
    """
    if frame_min is not None:
        frame = float(torch.empty(()).uniform_(frame_min, frame))
    if frame > 1:
        drawn = torch.empty_like(positions)
        for c, axis in enumerate(positions.unbind(-1)):
            cells, index = axis.unique(return_inverse=True)  # of the sorted coordinates
            chosen = torch.randperm(round(frame * len(cells)))[: len(cells)].sort().values
            drawn[:, c] = chosen.to(axis)[index]
        positions = drawn
    if scale > 1:
        positions = positions * scale ** float(torch.empty(()).uniform_(-1, 1))
    if offset > 0:
        positions = positions + torch.empty(positions.shape[-1]).uniform_(-offset, offset).to(positions)
    return positions
