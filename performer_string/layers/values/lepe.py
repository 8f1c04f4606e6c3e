"""A depthwise convolution of the values beside attention, at any resolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.layers.values.base import Attention, ValueMap
from performer_string.ops.layout import Grid, TokenLayout
from performer_string.position.base import Sizes

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class LocalEnhancement(ValueMap):
    """o_i = sum_j A_ij v_j + sum_j w(p_j - p_i) v_j, with a kernel w of the offset for each channel.

    A convolution adds to linear attention what its few features cannot hold: A has at most rank m, and w is near full.
    CSWin's locally enhanced positional encoding, LePE (arXiv:2107.00652), which FLatten adds to linear attention
    (arXiv:2308.00442). The kernel is one of real offsets here, so that a trained model goes to other resolutions: K
    taps w_k along each axis, one training patch apart, with straight lines between them; on a grid of spacing s

        w(x) = sum_k w_k prod_c h(x_c - k_c) / sum_n h(n s_c - k_c),    h(x) = max(1 - |x| / max(s_c, 1), 0)

    At s = 1 that is a common convolution with K taps. Where tokens are closer, each tap is the mean of those around its
    place, and where they are further apart, the lines are as wide as their distance, lest a tap fall between them.
    Beyond the edge, and where tokens do not take part, there is nothing. Prefix tokens have no place in it.

    Positions get no gradient from it.

    Args:
        kernel_size: K, odd.

    Raises:
        ValueError: (forward) positions that are no regular grid.
    """

    needs_grid = True

    def __init__(self, sizes: Sizes, *, kernel_size: int = 3):
        super().__init__(sizes)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size has to be odd and positive, not {kernel_size}.")
        if sizes.coord_dim not in CONVOLUTIONS:
            raise ValueError(f"lepe is a convolution of one to three axes, not of {sizes.coord_dim}.")
        self.kernel_size, self.coord_dim = kernel_size, sizes.coord_dim
        taps = torch.empty(self.num_heads, self.head_dim, *[kernel_size] * sizes.coord_dim)
        bound = kernel_size ** (-sizes.coord_dim / 2)  # as torch's convolutions begin, with K^C inputs each
        self.weight = nn.Parameter(taps.uniform_(-bound, bound))

    def resized(self, grid: Grid) -> Tensor:
        """w at the offsets of a grid that are within its reach: [H d, 1, K_0, ...], odd numbers of them."""
        weight = self.weight.flatten(0, 1)  # [H d, K, ...]
        for step in grid.steps[: self.coord_dim]:
            lines = hats(self.kernel_size, step).to(weight)  # [K_c, K]
            weight = torch.tensordot(weight, lines, dims=([1], [1]))  # the axis in front goes to the end
        return weight[:, None]

    def convolve(self, v: Tensor, grid: Grid) -> Tensor:
        """sum_j w(p_j - p_i) v_j of the tokens of a grid: [B, H, N, d] to the same."""
        weight = self.resized(grid).to(v.dtype)
        image = v.transpose(2, 3).flatten(1, 2).unflatten(-1, grid.shape[: self.coord_dim])  # [B, H d, n_0, ...]
        padding = [size // 2 for size in weight.shape[2:]]
        out = CONVOLUTIONS[self.coord_dim](image, weight, padding=padding, groups=len(weight))
        return out.flatten(2).unflatten(1, v.shape[1:2] + v.shape[3:]).transpose(2, 3)

    def forward(self, attend: Attention, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        patches = v if layout.mask is None else v.masked_fill(~layout.mask[:, None, :, None], 0.0)
        patches, grids = patches[:, :, layout.num_prefix :], regular_grids(layout)
        if len(set(grids)) == 1:
            local = self.convolve(patches, grids[0])
        else:
            samples = [self.convolve(*pair) for pair in zip(patches.split(1), grids, strict=False)]
            local = torch.cat([*samples, patches[:0] * self.weight.sum()])  # a batch of no samples has a gradient too
        return attend(v) + F.pad(local, (0, 0, layout.num_prefix, 0))


def regular_grids(layout: TokenLayout) -> list[Grid]:
    """Return the grid of the tokens behind the prefix, or that of each sample.

    Raises:
        ValueError: positions that are no regular grid.
    """
    grids = layout.grids()
    regular = [grid for grid in grids if grid is not None]
    if len(regular) < len(grids):
        assert layout.positions is not None
        shape = list(layout.positions[..., layout.num_prefix :, :].shape)
        raise ValueError(
            f"the value map 'lepe' needs positions [N, C] or [B, N, C] of row-major grids with equal steps along each "
            f"axis, which these {shape} are not."
        )
    return regular


def hats(taps: int, step: float) -> Tensor:
    """h(n s - k) over its sum for the taps k, and all n where any is above zero: [2 R + 1, K]."""
    wide, half = max(step, 1.0), taps // 2
    reach = math.ceil((half + wide) / step - 1e-6) - 1  # at their ends the lines are zero
    offsets, centres = (torch.arange(-n, n + 1, dtype=torch.float64) for n in (reach, half))
    lines = (1 - (offsets[:, None] * step - centres).abs() / wide).clamp(min=0)
    return lines / lines.sum(dim=0)
