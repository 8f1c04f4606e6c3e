"""Regular grids as three axes of tokens: found in positions, and cut into tiles or cells.

A grid of C <= 3 axes is written as (n_0, n_1, n_2) with ones behind, so that one loop serves every dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Lattice:
    """A row-major grid of tokens.

    Attributes:
        shape: tokens along each of three axes; 1 where the grid has fewer dimensions.
        steps: the distance of neighbours along each axis, in patches; 1 along an axis of one token.
        dim: C, how many of the axes are the positions' own.
    """

    shape: Triple
    steps: tuple[float, float, float]
    dim: int

    @property
    def tokens(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]


def lattice_of(shape: Sequence[int], steps: Sequence[float]) -> Lattice | None:
    """The grid of this shape and these steps, 1 along an axis of one token; None of more than three axes."""
    if not 1 <= len(shape) <= 3:
        return None
    n0, n1, n2 = (*shape, 1, 1)[:3]
    s0, s1, s2 = (*steps, 1.0, 1.0)[:3]
    return Lattice((n0, n1, n2), (s0, s1, s2), len(shape))


def find_lattice(positions: Tensor) -> Lattice | None:
    """The regular row-major grid that `positions` [N, C] are, of any spacing and origin; None where there is none.

    A coordinate may be off by a thousandth of a step, or what rounding makes of it on a long axis.
    """
    positions = positions.detach()
    positions = positions if positions.is_floating_point() else positions.double()
    tokens, dim = positions.shape
    if tokens == 0 or not 1 <= dim <= 3 or not bool(positions.isfinite().all()):
        return None
    shape, steps, left = [], [], tokens
    for c in range(dim):  # axis c is constant over the first `inner` tokens, and then takes its next value
        axis = positions[:, c]
        jumps = axis[1:left] - axis[: left - 1]
        step = float(jumps.max()) if left > 1 else 0.0
        if step <= 0:
            shape.append(1)
            steps.append(1.0)
            continue
        moved = (jumps > step / 2).nonzero()
        inner = int(moved[0]) + 1
        if left % inner:
            return None
        shape.append(left // inner)
        steps.append(float(axis[left - 1] - axis[0]) / (left // inner - 1))
        left = inner
    if left != 1 or min(steps) <= 0:
        return None
    for c, (n, step) in enumerate(zip(shape, steps, strict=True)):
        index = torch.arange(n, device=positions.device, dtype=positions.dtype) * step
        view = [n if i == c else 1 for i in range(dim)]
        expected = (positions[0, c] + index).view(view).expand(shape).reshape(-1)  # [n_0, ...] -> [N]
        rounding = 4 * torch.finfo(positions.dtype).eps * positions[:, c].abs().max()
        if n > 1 and not bool(((positions[:, c] - expected).abs() <= rounding.clamp(min=1e-3 * step)).all()):
            return None
        if n == 1 and not bool((positions[:, c] == positions[0, c]).all()):
            return None
    return lattice_of(shape, steps)


def to_cells(x: Tensor, shape: Triple, cell: Triple) -> Tensor:
    """Tokens sorted by cells, with zeros where a cell reaches over the edge: [B, N, c] -> [cells, B, S, c]."""
    x = x.unflatten(1, shape)  # [B, n_0, n_1, n_2, c]
    over = [-n % s for n, s in zip(shape, cell, strict=True)]
    if any(over):
        x = F.pad(x, (0, 0, 0, over[2], 0, over[1], 0, over[0]))
    for axis in (2, 1, 0):
        x = x.unflatten(axis + 1, (-1, cell[axis]))
    x = x.permute(1, 3, 5, 0, 2, 4, 6, 7)  # [c_0, c_1, c_2, B, s_0, s_1, s_2, c]
    return x.flatten(4, 6).flatten(0, 2)  # [cells, B, S, c]


def from_cells(x: Tensor, shape: Triple, cell: Triple) -> Tensor:
    """The inverse of `to_cells`: [cells, B, S, c] -> [B, N, c]."""
    cells = [-(-n // s) for n, s in zip(shape, cell, strict=True)]
    x = x.unflatten(2, cell).unflatten(0, cells)  # [c_0, c_1, c_2, B, s_0, s_1, s_2, c]
    x = x.permute(3, 0, 4, 1, 5, 2, 6, 7).flatten(5, 6).flatten(3, 4).flatten(1, 2)
    return x[:, : shape[0], : shape[1], : shape[2]].flatten(1, 3)  # [B, N, c]
