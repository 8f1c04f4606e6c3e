"""A learned table over the offsets: a relative position bias on the logits of linear attention,

    o_i = sum_j c(p_i - p_j) phi(q_i)^T phi(k_j) v_j / sum_j c(p_i - p_j) phi(q_i)^T phi(k_j)

with c = exp(b) > 0 for each head. Source: Luo et al. 2021, arXiv:2106.12566, by FFT. On a regular grid c(p_i - p_j) is
block-Toeplitz, and its product with the columns phi(k_j) [v_j, 1] is a convolution. For fewer than some 10^5 tokens a
window over the whole grid is faster, and its memory is linear in N too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from performer_string.bias.base import RelativeBias
from performer_string.ops.layout import Grid
from performer_string.utils._compat import is_transformed

# Most numbers that go through one FFT; a block has at least one feature of all samples and heads.
FFT_ENTRIES = {"cpu": 4e6, "cuda": 2.5e8}
# Predicted cost of each number in each stage of an FFT, in multiplications of the window, measured on a CPU.
FFT_COST = 300.0


def toeplitz_sum(fq: Tensor, fk: Tensor, v: Tensor, kernel: Tensor, shape: Sequence[int]) -> Tensor:
    """Return sum_j c(i - j) phi(q_i)^T phi(k_j) v_j over a row-major grid, by FFT.

    The error is the rounding of the largest term in float64, hence 1e-6 where c spans less than eight decades. Time is
    N log N m d. Features are taken in blocks, and the backward pass computes the sum of each block again: memory is N
    (m + d).

    Args:
        fq, fk: features of the queries and keys, [B, H, N, m].
        v: values, [B, H, N, d].
        kernel: values of c at the offsets -(n - 1) .. n - 1 along each axis, [H, 2 n_0 - 1, ...].
        shape: sizes n_0, ... of the grid.

    Returns:
        Sums, [B, H, N, d].

    Raises:
        ValueError: a kernel or a grid of another size.
    """
    expected = (fq.shape[1], *(2 * n - 1 for n in shape))
    if kernel.shape != expected or math.prod(shape) != fq.shape[2]:
        raise ValueError(
            f"for {fq.shape[1]} heads and {fq.shape[2]} tokens on a grid of {tuple(shape)} the kernel must be "
            f"{list(expected)}, not {list(kernel.shape)}, and the grid's sizes must multiply to the tokens."
        )
    per_feature = len(fq) * kernel.numel() * v.shape[-1]
    block = int(min(fq.shape[-1], max(1, FFT_ENTRIES.get(fq.device.type, 4e6) // per_feature)))
    out = torch.zeros_like(v)
    for q, k in zip(fq.split(block, dim=-1), fk.split(block, dim=-1), strict=True):
        if torch.is_grad_enabled() and block < fq.shape[-1] and not is_transformed():
            out = out + checkpoint(_convolve, q, k, v, kernel, shape, use_reentrant=False, preserve_rng_state=False)
        else:
            out = out + _convolve(q, k, v, kernel, shape)
    return out


def _convolve(fq: Tensor, fk: Tensor, v: Tensor, kernel: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `toeplitz_sum` of a block of features."""
    axes = tuple(range(-len(shape), 0))
    sizes = tuple(2 * n - 1 for n in shape)
    # A transform's error is relative to the largest number, which is far above small sums where c spans decades.
    dtype = fk.dtype if fk.device.type == "mps" else torch.float64
    products = fk.to(dtype).mT[..., None, :] * v.to(dtype).mT[:, :, None]  # [B, H, m, d, N]
    spectrum = torch.fft.rfftn(products.unflatten(-1, tuple(shape)), s=sizes, dim=axes)
    # The transform is cyclic in 2 n - 1. The offset 0 comes first, and no two of the 2 n - 1 offsets coincide.
    centred = torch.fft.ifftshift(kernel.to(dtype), dim=axes)
    spectrum = spectrum * torch.fft.rfftn(centred, dim=axes)[:, None, None]
    sums = torch.fft.irfftn(spectrum, s=sizes, dim=axes)
    for axis, n in zip(axes, shape, strict=True):
        sums = sums.narrow(axis, 0, n)
    return torch.einsum("bhim,bhmdi->bhid", fq, sums.flatten(-len(shape)).to(fq.dtype))


class ToeplitzBias(RelativeBias):
    """A factor c(r) whose sums over a regular grid use FFT where that is predicted to cost less than a window."""

    def kernel(self, grid: Grid, like: Tensor) -> Tensor:
        """Return c at the offsets of a grid, in the type of `like`: [H, 2 n_0 - 1, ...]."""
        axes = []
        for n, step in zip(grid.shape[: grid.dim], grid.steps, strict=False):
            axes.append(torch.arange(1 - n, n, device=like.device, dtype=like.dtype) * step)
        return self.of_offsets(torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)).to(like.dtype)

    def needs_all_features(self, grid: Grid, features: int, width: int) -> bool:
        """Return whether the FFT, which needs them, is predicted to cost less than a window over the grid."""
        stages = math.log2(grid.tokens) + grid.dim
        return grid.tokens * (features + width) > FFT_COST * features * width * stages

    def sum_on_grid(self, fq: Tensor, fk: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """Return the sum over the tokens of a grid, by FFT or by a window over all of it: [B, H, N, d]."""
        if not self.needs_all_features(grid, fq.shape[-1], v.shape[-1]):
            return super().sum_on_grid(fq, fk, v, grid)
        return toeplitz_sum(fq, fk, v, self.kernel(grid, fq), grid.shape[: grid.dim])


class RelativeBiasTable(ToeplitzBias):
    """A table c(r) = exp(b(r)), with b learned, [H, 2 n_0 - 1, ...], over the offsets of the training grid.

    Between whole offsets b is interpolated linearly along each axis. Beyond the training grid it has the value of the
    border. At the start b = 0: no bias.

    Args:
        num_heads: number H of heads.
        grid: training grid, the sizes n_0, ... along each axis.
        normalised: whether the denominator has c too, as with a bias of the logits.

    Raises:
        ValueError: no grid, or sizes below 1.
    """

    def __init__(self, num_heads: int, *, grid: Sequence[int] | None = None, normalised: bool = True):
        super().__init__(num_heads, normalised)
        if not isinstance(grid, Sequence) or not grid or min(grid) < 1:
            raise ValueError(f"table: needs the training grid, one or more positive sizes as (14, 14), not {grid}.")
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
        lower, fraction = [], []
        for axis, n in zip(offsets.unbind(-1), self.grid, strict=True):
            entry = axis.clamp(1 - n, n - 1) + (n - 1)
            floor = entry.detach().floor().clamp(max=max(2 * n - 3, 0))
            lower.append(floor.long())
            fraction.append(entry - floor)
        total = torch.zeros((), dtype=offsets.dtype, device=offsets.device)
        for corner in itertools.product((0, 1), repeat=len(self.grid)):
            index: list[Any] = [slice(None)]
            index += [(low + up).clamp(max=2 * n - 2) for low, up, n in zip(lower, corner, self.grid, strict=True)]
            weight = torch.ones_like(fraction[0])
            for up, part in zip(corner, fraction, strict=True):
                weight = weight * (part if up else 1 - part)
            total = total + weight * self.bias[tuple(index)]
        return total
