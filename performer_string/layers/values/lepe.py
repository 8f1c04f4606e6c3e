"""A depthwise convolution of the values, added to attention, at any resolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.layers.values.base import ValueMap, Weighted
from performer_string.ops.layout import Grid, TokenLayout
from performer_string.position.base import Sizes
from performer_string.utils.cache import memoized

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class LocalEnhancement(ValueMap):
    """Attention plus a convolution, o_i = sum_j A_ij v_j + sum_j w(p_j - p_i) v_j, with a kernel w for each channel.

    Linear attention has weights of rank m at most; those of a convolution have nearly full rank. The source is CSWin's
    locally enhanced positional encoding, LePE (arXiv:2107.00652), which FLatten adds to linear attention
    (arXiv:2308.00442). The kernel here is a function of real offsets, so that a trained model goes to other
    resolutions: K taps w_k along each axis, one training patch apart, with linear interpolation. On a grid of spacing s

        w(x) = sum_k w_k prod_c h(x_c - k_c) / sum_n h(n s_c - k_c),    h(x) = max(1 - |x| / max(s_c, 1), 0)

    At s = 1 that is a common convolution with K taps. Where tokens are closer, each tap is spread over the offsets
    around it. Where they are further apart, h is as wide as their distance, so that every tap reaches a token.

    Where a ViT's positions form no regular grid, as randomized positions, the grid is that of the image's patches.
    Masked tokens, prefix tokens and places beyond the edge count as zero. Positions get no gradient.

    Args:
        sizes: sizes of the attention.
        kernel_size: number K of taps along each axis, odd.

    Raises:
        ValueError: an even kernel size, positions of more than three axes, or (forward, outside of a ViT) positions
            that are no regular grid.
    """

    convolves = True

    def __init__(self, sizes: Sizes, *, kernel_size: int = 3):
        super().__init__(sizes)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd and positive, not {kernel_size}.")
        if sizes.coord_dim not in CONVOLUTIONS:
            raise ValueError(f"lepe is a convolution of one to three axes, not of {sizes.coord_dim}.")
        self.kernel_size, self.coord_dim = kernel_size, sizes.coord_dim
        taps = torch.empty(self.num_heads, self.head_dim, *[kernel_size] * sizes.coord_dim)
        bound = kernel_size ** (-sizes.coord_dim / 2)  # the default of torch's convolutions with K^C inputs each
        self.weight = nn.Parameter(taps.uniform_(-bound, bound))

    def resized(self, grid: Grid) -> Tensor:
        """Return w at the offsets of a grid within its support: [H d, 1, K_0, ...], with K_c odd."""
        weight = self.weight.flatten(0, 1)  # [H d, K, ...]
        for step in grid.steps[: self.coord_dim]:
            if step == 1:  # as in training: no matrix is needed
                weight = weight.movedim(1, -1)
                continue
            matrix = matrix_of(self.kernel_size, step, weight.device, weight.dtype)  # [K_c, K]
            weight = torch.tensordot(weight, matrix, dims=([1], [1]))  # the axis in front goes to the end
        return weight[:, None]

    def convolve(self, v: Tensor, grid: Grid) -> Tensor:
        """Return sum_j w(p_j - p_i) v_j of the tokens of a grid: [B, H, N, d] to the same."""
        weight = self.resized(grid).to(v.dtype)
        image = v.transpose(2, 3).flatten(1, 2).unflatten(-1, grid.shape[: self.coord_dim])  # [B, H d, n_0, ...]
        padding = [size // 2 for size in weight.shape[2:]]
        out = CONVOLUTIONS[self.coord_dim](image, weight, padding=padding, groups=len(weight))
        return out.flatten(2).unflatten(1, v.shape[1:2] + v.shape[3:]).transpose(2, 3)

    def forward(self, attend: Weighted, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j A_ij v_j + sum_j w(p_j - p_i) v_j; arguments as those of `ValueMap`."""
        if layout.lengths is None:
            return attend(v) + self.enhancement(v, layout)
        parts = zip(v.split(list(layout.lengths), dim=2), layout.parts(), strict=True)
        return attend(v) + torch.cat([self.enhancement(*part) for part in parts], dim=2)

    def enhancement(self, v: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j w(p_j - p_i) v_j, and zero for prefix tokens: [B, H, N, d] to the same."""
        patches = v if layout.mask is None else v.masked_fill(~layout.mask[:, None, :, None], 0.0)
        patches = patches[:, :, layout.num_prefix :]
        if not patches.shape[2]:
            return torch.zeros_like(v)
        grids = regular_grids(layout)
        if len(grids) == 1 or len(set(grids)) == 1:  # sizes in an export have no hash
            local = self.convolve(patches, grids[0])
        else:
            samples = [self.convolve(*pair) for pair in zip(patches.split(1), grids, strict=False)]
            # The empty part gives the weights a gradient of zero in a batch of no samples.
            local = torch.cat([*samples, patches[:0] * self.weight.sum()])
        return F.pad(local, (0, 0, layout.num_prefix, 0))


def regular_grids(layout: TokenLayout) -> list[Grid]:
    """Return the grid of the tokens after the prefix, or that of each sample.

    Raises:
        ValueError: positions that are no regular grid, of tokens that are not known to be those of an image.
    """
    grids = [grid or layout.image_grid for grid in layout.grids()]
    regular = [grid for grid in grids if grid is not None]
    if len(regular) < len(grids):
        assert layout.positions is not None
        shape = list(layout.positions[..., layout.num_prefix :, :].shape)
        raise ValueError(
            f"the value map 'lepe' needs positions [N, C] or [B, N, C] of row-major grids with equal steps along each "
            f"axis, which these {shape} are not."
        )
    return regular


def interpolation_matrix(taps: int, step: float) -> Tensor:
    """Return h(n s - k) over its sum over n.

    Args:
        taps: number K of taps, odd.
        step: distance s of two tokens, in training patches.

    Returns:
        Matrix, float64 [2 R + 1, K], for the offsets n = -R .. R at which any tap k is above zero.
    """
    half_width, half = max(step, 1.0), taps // 2
    reach = math.ceil((half + half_width) / step - 1e-6) - 1  # h is zero at a distance of half_width
    offsets, centres = (torch.arange(-n, n + 1, dtype=torch.float64, device="cpu") for n in (reach, half))
    weights = (1 - (offsets[:, None] * step - centres).abs() / half_width).clamp(min=0)
    return weights / weights.sum(dim=0)


def matrix_of(taps: int, step: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return `interpolation_matrix` on a device, copied there once for all layers and passes.

    Nothing is kept under a mode of fake tensors, which have no values and may not outlast their mode.
    """
    if type(torch.empty(0)) is Tensor:
        return kept_matrix(taps, step, device, dtype)
    return interpolation_matrix(taps, step).to(device, dtype)


@memoized(64)
@torch.inference_mode(False)  # a training may follow an evaluation
def kept_matrix(taps: int, step: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the matrix of `matrix_of`, from its cache."""
    return interpolation_matrix(taps, step).to(device, dtype)
