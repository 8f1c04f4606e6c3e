"""Widths of decays, learned within bounds: sigma = low (high / low)^s with s in (0, 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.utils.dtype import full_precision


def raw_width(sigma: float, bounds: Sequence[float]) -> Tensor:
    """Return the logit of s for a width, a scalar.

    Args:
        sigma: width, in patches.
        bounds: bounds (low, high) of the width, in patches.

    Raises:
        ValueError: a width out of its bounds, or infinite bounds.
    """
    low, high = bounds
    if not 0 < low < sigma < high < math.inf:
        raise ValueError(
            f"sigma must lie within finite bounds, 0 < {low} < sigma < {high}, not {sigma}: pass other "
            f"sigma_bounds=(low, high), or positions in another unit."
        )
    return torch.tensor(math.log(sigma / low) / math.log(high / low)).logit()


def bounded_width(raw: Tensor, bounds: Sequence[float]) -> Tensor:
    """Return the width of a logit of s, in patches and at least in float32; the inverse of `raw_width`."""
    low, high = bounds
    return low * (high / low) ** full_precision(raw).sigmoid()


def check_axes(widths: int, axes: int) -> None:
    """Raise a ValueError where a decay has widths for some axes, and positions have another number of axes."""
    if widths != axes or not widths:
        raise ValueError(
            f"the decay has a sigma for each of {widths} axes, and positions have {axes}: give as many sigmas, or one "
            f"number for all axes together."
        )
