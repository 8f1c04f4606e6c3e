"""Grids of any dimension as real coordinates.

One unit is one patch of the training grid, whatever the resolution: a larger image has positions further out, not
closer together ("spacing preserved", which LieRE, arXiv:2406.10322 section 5.6, found best).
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, get_args

import torch
from torch import Tensor

PositionMode = Literal["extrapolate", "interpolate", "unit"]


def grid_positions(
    grid: Sequence[int],
    *,
    mode: PositionMode = "extrapolate",
    train_grid: Sequence[int] | None = None,
    centred: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Coordinates of the cells of a grid, in row-major order.

    Args:
        grid: cells along each of the C axes, for example `(h, w)`.
        mode: `"extrapolate"`: cell i of an axis lies at i. `"interpolate"`: the grid is squeezed onto `train_grid`,
            with cell centres aligned: (i + 1/2) n_train / n - 1/2. `"unit"`: i / (n - 1) in [0, 1]; it destroys the
            scale and is here only to reproduce code that does so.
        train_grid: the training grid; only (and always) for `"interpolate"`.
        centred: subtract the mean position, which makes a model with any encoding but `absolute`, a table of
            places, exactly invariant to a common move of all tokens.

    Returns:
        [N, C] with N the product of `grid`; unit: one patch of the training grid.
    """
    given = {"grid": grid} if train_grid is None else {"grid": grid, "train_grid": train_grid}
    for name, sizes in given.items():
        whole = isinstance(sizes, Sequence) and all(isinstance(n, Integral | torch.SymInt) and n > 0 for n in sizes)
        if not whole or not sizes:
            raise ValueError(f"{name} has to hold one or more positive sizes, like (14, 14), not {sizes!r}.")
    if mode not in get_args(PositionMode):
        raise ValueError(f"mode has to be one of {', '.join(get_args(PositionMode))}, not {mode!r}.")
    if (mode == "interpolate") != (train_grid is not None):
        raise ValueError(f'mode "interpolate" needs train_grid, and no other does; mode={mode!r}, {train_grid=}.')
    if train_grid is not None and len(train_grid) != len(grid):
        raise ValueError(f"train_grid {tuple(train_grid)} and grid {grid} differ in dimension.")

    if dtype in (torch.bfloat16, torch.float16):
        raise ValueError(f"{dtype} rounds positions, to whole patches or worse: use float32 or float64.")
    axes = []
    for c, n in enumerate(grid):
        axis = torch.arange(n, device=device, dtype=dtype)  # [n]
        if train_grid is not None:
            axis = (axis + 0.5) * (train_grid[c] / n) - 0.5
        elif mode == "unit":
            axis = axis / max(n - 1, 1)
        axes.append(axis - axis.mean() if centred else axis)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(grid))  # [N, C]


def grid_steps(grid: Sequence[int], mode: PositionMode, train_grid: Sequence[int] | None) -> list[float]:
    """How far the cells of `grid_positions` lie apart, along each axis; 1 along an axis of one cell."""
    if mode == "interpolate":
        assert train_grid is not None
        return [n_train / n if n > 1 else 1.0 for n_train, n in zip(train_grid, grid, strict=True)]
    return [1 / max(n - 1, 1) if mode == "unit" else 1.0 for n in grid]


def as_floating(positions: Tensor) -> Tensor:
    """Return positions as floating-point numbers, of torch's default type where they are integers."""
    return positions if positions.is_floating_point() else positions.to(torch.get_default_dtype())


def mean_position(positions: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean position, [..., 1, C]; with a mask [B, N] that of the tokens that take part, [B, 1, C]."""
    if mask is None:
        return positions.mean(dim=-2, keepdim=True)
    weights = mask[..., None].to(positions.dtype)  # [B, N, 1]
    return (positions * weights).sum(dim=-2, keepdim=True) / weights.sum(dim=-2, keepdim=True)


def with_prefix(positions: Tensor, count: int) -> Tensor:
    """Return positions with `count` prefix tokens (class token, registers) first, at the origin: [..., P + N, C]."""
    if not count:
        return positions
    *batch, _, dimensions = positions.shape
    return torch.cat([positions.new_zeros(*batch, count, dimensions), positions], dim=-2)
