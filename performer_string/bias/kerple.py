"""KERPLE: a bias of the logits by a conditionally positive definite kernel of the distance, for each head.

    o_i = sum_j c(p_i - p_j) A_ij v_j / sum_j c(p_i - p_j) A_ij    with log c(r) = -r1 log(1 + r2 |r|) or -r1 |r|^r2

Source: Chi et al., arXiv:2205.09921, section 4.2, along a sequence; |r| is the Euclidean distance here.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from performer_string.bias.base import RelativeBias
from performer_string.utils.dtype import full_precision
from performer_string.utils.registry import choose

Kernel = Literal["log", "power"]
MAX_POWER = 2.0  # largest exponent: above it the kernel is not conditionally positive definite


class Kerple(RelativeBias):
    """The bias log c(r) = -r1 log(1 + r2 |r|), or -r1 |r|^r2, with r1 and r2 learned for each head.

    Args:
        num_heads: number H of heads.
        kernel: form of c: `log` for the first, `power` for the second.
        r1: initial r1, positive.
        r2: initial r2, positive: a rate per patch for `log`, an exponent below 2 for `power`.
        normalised: whether the denominator has c too, as with a bias of the logits.

    Raises:
        ValueError: an unknown kernel, or an initial value out of its range.
    """

    def __init__(
        self, num_heads: int, *, kernel: Kernel = "log", r1: float = 1.0, r2: float = 1.0, normalised: bool = True
    ):
        super().__init__(num_heads, normalised)
        self.form: Kernel = choose("kernel of kerple", kernel, Kernel)
        highest = MAX_POWER if self.form == "power" else math.inf
        if not (0 < r1 < math.inf and 0 < r2 < highest):
            raise ValueError(f"kerple: r1 must be positive and r2 between 0 and {highest}, not {r1} and {r2}.")
        raw_r2 = math.log(r2 / (highest - r2)) if self.form == "power" else math.log(r2)
        self.raw_r1 = nn.Parameter(torch.full((num_heads,), math.log(r1)))
        self.raw_r2 = nn.Parameter(torch.full((num_heads,), raw_r2))

    def r1(self) -> Tensor:
        """Return r1, [H]."""
        return full_precision(self.raw_r1).exp()

    def r2(self) -> Tensor:
        """Return r2, [H]."""
        raw = full_precision(self.raw_r2)
        return MAX_POWER * raw.sigmoid() if self.form == "power" else raw.exp()

    def learned(self) -> dict[str, Tensor]:
        """Return `r1` and `r2`, [H] each."""
        return {"r1": self.r1(), "r2": self.r2()}

    def log_of_offsets(self, offsets: Tensor) -> Tensor:
        """Return log c(r) of offsets [..., C], [H, ...]."""
        squares = offsets.square().sum(-1)
        apart = squares > 0  # at 0 the root has no gradient
        distance = torch.where(apart, squares, 1.0).sqrt()
        r1, r2 = (r.view(-1, *[1] * squares.ndim) for r in (self.r1(), self.r2()))
        logs = -r1 * ((r2 * distance).log1p() if self.form == "log" else distance**r2)
        return torch.where(apart, logs, 0.0)
