"""Blocks of a grid of two axes, and the small matrices of an exponential decay inside and between them.

Along an axis, a_- and a_+ are the factors for each step to a source before and behind the target. The decay of a target
i and a source j is a_-^(i - j) for j < i, and a_+^(j - i) for j > i. All exponents are non-positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.ops.layout import Grid


@dataclass(frozen=True)
class Blocks:
    """Blocks of a grid of rows and columns, the last ones filled up with tokens that take no part.

    Attributes:
        rows, columns: numbers of tokens of the grid along both axes.
        height, width: numbers of tokens of a block along both axes.
    """

    rows: int
    columns: int
    height: int
    width: int

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of blocks along both axes."""
        return -(-self.rows // self.height), -(-self.columns // self.width)

    @property
    def places(self) -> int:
        """Number of places of all blocks, also of those that hold no token."""
        return self.counts[0] * self.height * self.counts[1] * self.width

    @property
    def are_full(self) -> bool:
        """Whether every place of every block holds a token."""
        return self.rows % self.height == 0 and self.columns % self.width == 0

    def split(self, x: Tensor) -> Tensor:
        """Sort tokens by blocks, with zeros in the places without one: [B, N, c] -> [Y, X, B, h, w, c]."""
        (y, x_count), batch, c = self.counts, x.shape[0], x.shape[-1]
        x = x.unflatten(1, (self.rows, self.columns))
        x = F.pad(x, (0, 0, 0, x_count * self.width - self.columns, 0, y * self.height - self.rows))
        x = x.view(batch, y, self.height, x_count, self.width, c)
        return x.permute(1, 3, 0, 2, 4, 5).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """Undo `split`: [Y, X, B, h, w, c] -> [B, N, c]."""
        y, x_count, batch, h, w, c = x.shape
        x = x.permute(2, 0, 3, 1, 4, 5).reshape(batch, y * h, x_count * w, c)
        return x[:, : self.rows, : self.columns].flatten(1, 2)


def active_axes(grid: Grid) -> list[int]:
    """Return the axes of a grid with more than one token."""
    return [axis for axis, n in enumerate(grid.shape) if n > 1]


def make_blocks(grid: Grid, side: int) -> Blocks | None:
    """Return blocks of at most side x side tokens, or side^2 along one axis; None for three axes.

    Blocks are as equal as possible, so that few places are without a token.
    """
    axes = active_axes(grid)
    if len(axes) > 2:
        return None
    rows, columns = (grid.tokens, 1) if len(axes) < 2 else (grid.shape[axes[0]], grid.shape[axes[1]])
    most = side if len(axes) == 2 else side**2
    height, width = (math.ceil(n / math.ceil(n / most)) for n in (rows, columns))
    return Blocks(rows, columns, height, width)


@dataclass(frozen=True)
class DecayMatrix:
    """A matrix of decays a_-^n a_+^l, with its derivatives by the logarithms of both factors.

    Attributes:
        value: matrix of decays.
        before, behind: derivatives by log a_- and log a_+, n and l times the value.
    """

    value: Tensor
    before: Tensor
    behind: Tensor

    def gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradients of log a_- and log a_+ from that of the matrix: [2], in float64 on the host."""
        gradient = gradient.to(self.value)
        return torch.stack([(gradient * self.before).sum(), (gradient * self.behind).sum()])


@dataclass(frozen=True)
class AxisDecay:
    """The decay of one head along one axis.

    Attributes:
        before, behind: logarithms of a_- and a_+, at most 0; -inf for a side without weight.
    """

    before: float
    behind: float

    def transposed(self) -> AxisDecay:
        """Return the decay with targets and sources exchanged."""
        return AxisDecay(self.behind, self.before)

    def matrix(self, before: Tensor, behind: Tensor, valid: Tensor | None = None) -> DecayMatrix:
        """Return a_-^before a_+^behind of integers of at least 0, and 0 where not `valid`."""
        value = decay_power(self.before, before) * decay_power(self.behind, behind)
        if valid is not None:
            value = torch.where(valid, value, 0.0)
        return DecayMatrix(value, before * value, behind * value)

    def mixing(self, lanes: int, linked: bool) -> DecayMatrix:
        """Return the decays inside the lanes of a block, and, if linked, from the lanes before and behind it.

        Returns:
            Decays, [lanes, lanes], or [lanes, lanes + 2]. The state from before is given at the last place before the
            block, and the state from behind at the first place behind it.
        """
        lane = torch.arange(lanes, dtype=torch.float64)
        steps = lane[:, None] - lane
        before, behind = steps.clamp(min=0), (-steps).clamp(min=0)
        if linked:
            zero = torch.zeros_like(lane)
            before = torch.cat([before, torch.stack([lane + 1, zero], dim=1)], dim=1)
            behind = torch.cat([behind, torch.stack([zero, lanes - lane], dim=1)], dim=1)
        return self.matrix(before, behind)

    def edges(self, lanes: int) -> DecayMatrix:
        """Return the decays from each lane of a block to its last and to its first lane, [2, lanes]."""
        lane, zero = torch.arange(lanes, dtype=torch.float64), torch.zeros(lanes, dtype=torch.float64)
        return self.matrix(torch.stack([lanes - 1 - lane, zero]), torch.stack([zero, lane]))

    def links(self, lanes: int, blocks: int) -> tuple[DecayMatrix, DecayMatrix]:
        """Return the decays between the edges of blocks, to each from those before and from those behind it.

        The first go from the last lane of a block to the last one before another. The second go from the first lane of
        a block to the first one behind another. Each is [blocks, blocks].
        """
        block = torch.arange(blocks, dtype=torch.float64)
        between = block[:, None] - block
        zero = torch.zeros_like(between)
        before = self.matrix((between - 1).clamp(min=0) * lanes, zero, between > 0)
        behind = self.matrix(zero, (-between - 1).clamp(min=0) * lanes, between < 0)
        return before, behind


def decay_power(log: float, exponent: Tensor) -> Tensor:
    """Return exp(log exponent) of exponents of at least 0; 1 for the exponent 0 also where the log is -inf."""
    return torch.where(exponent == 0, 1.0, torch.where(exponent == 0, 1.0, exponent).mul(log).exp())


Decays = tuple[AxisDecay, AxisDecay]  # the decays along the columns and along the rows


def block_decay(blocks: Blocks, decays: Decays) -> Tensor:
    """Return lambda between the tokens of a block, targets first, in float64: [h w, h w]."""
    down, right = decays
    return torch.kron(down.mixing(blocks.height, False).value, right.mixing(blocks.width, False).value)


def block_gradient(blocks: Blocks, decays: Decays, pairs: Tensor) -> Tensor:
    """Return the gradients of the logarithms of the factors inside of blocks.

    Args:
        blocks: blocks of the grid.
        decays: decays along both axes.
        pairs: gradient of lambda between the tokens of a block, [h w, h w].

    Returns:
        Gradients, [2, 2]: axes, and sources before and behind; in float64 on the host.
    """
    down, right = (d.mixing(n, False) for d, n in zip(decays, (blocks.height, blocks.width), strict=True))
    pairs = pairs.to(down.value).view(blocks.height, blocks.width, blocks.height, blocks.width)
    return torch.stack(
        [
            down.gradient(torch.einsum("ywzx,wx->yz", pairs, right.value)),
            right.gradient(torch.einsum("ywzx,yz->wx", pairs, down.value)),
        ]
    )
