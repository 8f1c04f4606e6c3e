"""Positions of the cells of grids of any dimension, as real coordinates.

One unit is one patch of the training grid at every resolution: a larger image has positions further out, not closer
together. LieRE found this "spacing preserved" best (arXiv:2406.10322, section 5.6).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from performer_string.utils.registry import choose

PositionMode = Literal["extrapolate", "interpolate"]


def check_position_mode(mode: str) -> None:
    """Raise a ValueError for an unknown position mode, or one that was removed."""
    if mode == "unit":
        raise ValueError(
            'position mode "unit" was removed: it scaled every grid to [0, 1], so that no distance had a meaning. '
            'Use "extrapolate" or "interpolate"; a model trained with it loads in the version that wrote it.'
        )
    choose("position mode", mode, PositionMode)


def check_grid(name: str, sizes: Sequence[int]) -> None:
    """Raise a ValueError, with the name of the argument, for no sizes or one that is no positive integer."""
    if torch.jit.is_tracing():
        raise RuntimeError(
            "torch.jit.trace cannot follow a grid of any size. Use torch.export.export(model, (images,)), or "
            "`python -m eval export` for a file. torch.utils.flop_counter.FlopCounterMode counts operations."
        )
    is_valid = isinstance(sizes, Sequence) and all(isinstance(n, Integral | torch.SymInt) and n > 0 for n in sizes)
    if not is_valid or not sizes:
        raise ValueError(f"{name} must hold one or more positive sizes, like (14, 14), not {sizes!r}.")


def grid_positions(
    grid: Sequence[int],
    *,
    mode: PositionMode = "extrapolate",
    train_grid: Sequence[int] | None = None,
    centred: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the coordinates of the cells of a grid, in row-major order.

    Args:
        grid: number of cells along each of the C axes, for example `(h, w)`.
        mode: meaning of a coordinate. With `"extrapolate"` cell i of an axis lies at i. With `"interpolate"` the grid
            is scaled to `train_grid` with cell borders aligned: cell i lies at (i + 1/2) n_train / n - 1/2.
        train_grid: training grid, for `"interpolate"` only.
        centred: whether to subtract the mean position. A model with any encoding but `absolute` is then exactly
            invariant to a translation of all tokens.
        device: device of the result.
        dtype: type of the result, float32 or float64.

    Returns:
        Positions, [N, C] with N the product of `grid`, in patches of the training grid.

    Raises:
        ValueError: sizes that are no positive integers, an unknown mode, another type, or no training grid that fits.
    """
    check_grid("grid", grid)
    check_position_mode(mode)
    if (mode == "interpolate") != (train_grid is not None):
        raise ValueError(f'mode "interpolate" needs train_grid, and no other does; mode={mode!r}, {train_grid=}.')
    if train_grid is not None:
        check_grid("train_grid", train_grid)
        if len(train_grid) != len(grid):
            raise ValueError(f"train_grid {tuple(train_grid)} and grid {grid} differ in dimension.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{dtype} rounds positions, to whole patches or worse: use float32 or float64.")
    axes = []
    for c, n in enumerate(grid):
        axis = torch.arange(n, device=device, dtype=dtype)  # [n]
        if train_grid is not None:
            axis = (axis + 0.5) * (train_grid[c] / n) - 0.5
        axes.append(axis - axis.mean() if centred else axis)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(grid))  # [N, C]


def grid_steps(grid: Sequence[int], mode: PositionMode, train_grid: Sequence[int] | None) -> list[float]:
    """Return the distance of neighbouring cells of `grid_positions` along each axis, in patches of the training grid.

    Args:
        grid: number of cells along each axis.
        mode: mode of `grid_positions`.
        train_grid: training grid of `grid_positions`.

    Returns:
        A distance for each axis; 1 along an axis of one cell.
    """
    if mode == "interpolate":
        assert train_grid is not None
        return [n_train / n if n > 1 else 1.0 for n_train, n in zip(train_grid, grid, strict=True)]
    return [1.0] * len(grid)


def as_floating(positions: Tensor) -> Tensor:
    """Return positions as floating-point numbers, of torch's default type where they are integers."""
    return positions if positions.is_floating_point() else positions.to(torch.get_default_dtype())


def clipped(positions: Tensor, low: int, high: int) -> Tensor:
    """Return positions within [low, high]. The gradient of clamp at its ends depends on the version of torch."""
    positions = as_floating(positions)
    return positions.maximum(positions.new_full((), low)).minimum(positions.new_full((), high))


def linear_cells(positions: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the cells on both sides of positions along one axis, and their weights, which sum to 1.

    Args:
        positions: positions along the axis, in cells, [..., N]; those outside are taken to its ends.
        size: number of cells along the axis.

    Returns:
        Two pairs of indices and weights, [..., N] each.
    """
    r = clipped(positions, 0, size - 1)
    lower = r.floor().long().clamp(max=max(0, size - 2))
    fraction = r - lower  # in [0, 1]
    return [(lower, 1 - fraction), ((lower + 1).clamp(max=size - 1), fraction)]


def corners(axes: Sequence[list[tuple[Tensor, Tensor]]]) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """Return the cells around positions, each as one index for each axis, with its weight, the product over the axes.

    Args:
        axes: pairs of indices and weights along each axis, as of `linear_cells`.
    """
    pairs = [tuple(zip(*corner, strict=True)) for corner in itertools.product(*axes)]
    return [(cells, functools.reduce(torch.mul, weights)) for cells, weights in pairs]


def mean_position(positions: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean position.

    Args:
        positions: positions of the tokens, [..., N, C].
        mask: mask of the tokens, [B, N], True for tokens to attend to; None for all.

    Returns:
        Mean positions, [..., 1, C], or [B, 1, C] with a mask, zero where no token takes part.
    """
    if mask is None:
        return positions.mean(dim=-2, keepdim=True)
    weights = mask[..., None].to(positions.dtype)  # [B, N, 1]
    return (positions * weights).sum(dim=-2, keepdim=True) / weights.sum(dim=-2, keepdim=True).clamp(min=1)


def with_prefix(positions: Tensor, count: int) -> Tensor:
    """Return positions with prefix tokens (class token, registers) first, at the origin.

    Args:
        positions: positions of the tokens, [..., N, C].
        count: number P of prefix tokens.

    Returns:
        Positions, [..., P + N, C].
    """
    if not count:
        return positions
    *batch, _, dimensions = positions.shape
    return torch.cat([positions.new_zeros(*batch, count, dimensions), positions], dim=-2)
