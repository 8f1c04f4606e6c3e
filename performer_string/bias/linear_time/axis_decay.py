"""An exponential decay along one axis of a grid, in blocks of tokens.

A step to a source before the target has the factor a_-, and one to a source behind it a_+. So the decay of a target i
and a source j is a_-^(i - j) for j < i and a_+^(j - i) for j > i. Sides are numbered: 0 before, and 1 behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class AxisDecay:
    """Decays inside of a block of n tokens along an axis, and from block to block.

    Args:
        logs: logarithms of a_- and a_+, at most 0; -inf for a side without weight.
        size: number n of tokens of a block.
        like: tensor of the device and type of the decays.
        learned: whether their gradients are wanted, which are then in their `grad`.

    Attributes:
        inside: decay between the tokens of a block, targets first, [n, n].
        to_edge: decay from each source to the edge of its block that is next to the targets, for both sides, [2, n].
        from_edge: decay from there to each target of the next block, for both sides, [2, n].
        over_block: decay over a whole block, for both sides, [2]; as numbers in `factors`.
        sides: sides that have any weight.
    """

    def __init__(self, logs: Sequence[float], size: int, like: Tensor, learned: bool = False):
        self.logs, self.size = logs, size
        exact = decays_of(torch.tensor(logs, dtype=torch.float64, device="cpu"), size)
        self.tensors = tuple(x.to(like).requires_grad_(learned) for x in exact)
        self.inside, self.to_edge, self.from_edge, self.over_block = self.tensors
        self.factors = [math.exp(log * size) for log in logs]
        self.sides = [side for side in (0, 1) if logs[side] > -math.inf]

    def gradient(self) -> Tensor:
        """Return the gradient of the logarithms from those of the decays: [2], in float64 on the host."""
        logs = torch.tensor(self.logs, dtype=torch.float64, device="cpu", requires_grad=True)
        with torch.enable_grad():
            exact = decays_of(logs, self.size)
        pairs = [(x, leaf.grad.to(x)) for x, leaf in zip(exact, self.tensors, strict=True) if leaf.grad is not None]
        outputs, gradients = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, logs, gradients)[0]


def decays_of(logs: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `inside`, `to_edge`, `from_edge` and `over_block` of `AxisDecay` for logarithms [2]."""
    place = torch.arange(size, dtype=logs.dtype, device=logs.device)
    steps, sides = place[:, None] - place, logs[:, None]
    inside = decay_power(logs[0], steps.clamp(min=0)) * decay_power(logs[1], (-steps).clamp(min=0))
    to_edge = decay_power(sides, torch.stack([size - 1 - place, place]))
    from_edge = decay_power(sides, torch.stack([place + 1, size - place]))
    return inside, to_edge, from_edge, (logs * size).exp()


def decay_power(log: Tensor, exponent: Tensor) -> Tensor:
    """Return exp(log exponent) of exponents of at least 0; 1 for the exponent 0 also where the log is -inf."""
    is_zero = exponent == 0
    return torch.where(is_zero, 1.0, (exponent.masked_fill(is_zero, 1.0) * log).exp())
