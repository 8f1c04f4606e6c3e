"""Powers, quotients, shapes and slices that several kernels share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def least_norm(dtype: torch.dtype) -> float:
    """Return the smallest norm whose square is a normal number of this type. Shorter vectors are not scaled up."""
    return float(torch.finfo(dtype).tiny ** 0.5)


def integer_power(x: Tensor, order: int, in_place: bool = False, keep: bool = False) -> Tensor:
    """Return x^order by repeated squaring, on a CPU about ten times faster than `pow` beyond the cube.

    Args:
        x: tensor of any shape.
        order: exponent, 1 or more.
        in_place: whether to overwrite intermediate results, which no gradient may need, and x too unless `keep`.
        keep: whether to leave x as it is.
    """
    times = Tensor.mul_ if in_place else Tensor.mul
    bits, power = bin(order)[3:], x
    keep = keep or "1" in bits  # x is used again as a factor
    for bit in bits:
        power = power * power if keep and power is x else times(power, power)
        if bit == "1":
            power = times(power, x)
    return power


def safe_denominator(denominator: Tensor) -> Tensor:
    """Return a positive denominator, but infinity where it is too small, so that the quotient is zero.

    The bound is some 1e-27 in float32. Features of high order may be large and still have a tiny product. Their
    gradient divides the large number by the tiny one, which would overflow.
    """
    return torch.where(denominator > torch.finfo(denominator.dtype).tiny ** 0.7, denominator, torch.inf)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / denominator, and zero where the denominator is too near to zero.

    The denominator may be negative, since a user's own feature map may have features of both signs.
    """
    magnitude = safe_denominator(denominator.abs())
    return numerator / torch.where(denominator < 0, -magnitude, magnitude)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether a tensor of a shape can be expanded to the target, as `torch.broadcast_to` does."""
    return len(shape) <= len(target) and all(n in (1, m) for n, m in zip(shape[::-1], target[::-1], strict=False))


def chunk_slices(total: int, size: int) -> list[slice]:
    """Return the slices that cut `range(total)` into chunks of `size`, the last one possibly shorter."""
    starts = range(0, total, size)
    return list(map(slice, starts, [*starts[1:], total]))  # each ends where the next begins
