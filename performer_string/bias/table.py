"""A learned table over the offsets: a relative position bias on the logits of linear attention,

    o_i = sum_j c(p_i - p_j) phi(q_i)^T phi(k_j) v_j / sum_j c(p_i - p_j) phi(q_i)^T phi(k_j)

with c = exp(b) > 0 for each head. Source: Luo et al. 2021, arXiv:2106.12566. They sum by FFT. A window over the whole
grid takes quadratic time and linear memory, and is faster below some 10^5 tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from performer_string.bias.base import RelativeBias
from performer_string.position.grid import corners, linear_cells


class RelativeBiasTable(RelativeBias):
    """A table c(r) = exp(b(r)), with b learned, [H, 2 n_0 - 1, ...], over the offsets of the training grid.

    Between whole offsets b is interpolated linearly along each axis. Beyond the training grid it has the value of the
    border. At the start b = 0: no bias.

    Args:
        num_heads: number H of heads.
        grid: training grid, the sizes n_0, ... along each axis.
        normalised: whether the denominator has c too, as with a bias of the logits.

    Raises:
        ValueError: no grid.
    """

    def __init__(self, num_heads: int, *, grid: Sequence[int] | None = None, normalised: bool = True):
        super().__init__(num_heads, normalised)
        if grid is None:
            raise ValueError("table: needs the training grid, for example grid=(14, 14).")
        self.grid = tuple(grid)
        self.bias = nn.Parameter(torch.zeros(num_heads, *(2 * n - 1 for n in grid)))

    def log_of_offsets(self, offsets: Tensor) -> Tensor:
        """Return b(r) of offsets [..., C], interpolated: [H, ...].

        Raises:
            ValueError: offsets of another number of axes than the training grid.
        """
        if offsets.shape[-1] != len(self.grid):
            raise ValueError(
                f"positions must have the {len(self.grid)} coordinates of grid={self.grid}, not {offsets.shape[-1]}."
            )
        axes = [linear_cells(axis + (n - 1), 2 * n - 1) for axis, n in zip(offsets.unbind(-1), self.grid, strict=True)]
        heads: Any = slice(None)
        return functools.reduce(torch.add, (weight * self.bias[(heads, *cells)] for cells, weight in corners(axes)))
