"""Kernels of the offset p_i - p_j on linear attention's products, dense and over a grid: what a locality and a relative
mask share."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from performer_string.features import FeatureMap
from performer_string.locality.lattice import Lattice, find_lattice
from performer_string.logs import warn_once
from performer_string.modes import plain

log = logging.getLogger(__name__)

DENSE = 256  # tokens up to which N x N is faster than any walk over a grid, forward and backward on a CPU; and exact


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A query that no key answers to gives zero.

    None does below some 1e-27 (of float32): features of high order are large, and in the gradient of those that did
    not meet, what is large over what is small would leave the range of numbers.
    """
    seen = denominator > torch.finfo(denominator.dtype).tiny ** 0.7
    return numerator / torch.where(seen, denominator, 1.0)


class OffsetKernel(nn.Module):
    """lambda(p_i - p_j) for each head; 1 from and to prefix tokens, which have no place.

    Attributes:
        num_heads: H.
        normalised: whether the denominator sees it too.
    """

    num_heads: int
    normalised: bool

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """lambda(r) of r [..., C] in patches, [H, ...]."""
        raise NotImplementedError

    def on_lattice(self, fq: Tensor, fk: Tensor, v: Tensor, lattice: Lattice) -> Tensor:
        """`numerator` over the tokens of a grid, without prefix tokens."""
        raise NotImplementedError

    def attend(
        self,
        phi: FeatureMap,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        num_prefix: int = 0,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Linear attention with lambda in it: q, k, v [B, H, N, d] -> [B, H, N, d], in the type of the features."""
        raise NotImplementedError

    def matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """lambda(p_i - p_j), [H, N, N]; 1 where either is one of the first `num_prefix` tokens, which have no place.

        Args:
            positions: [N, C].
        """
        if positions.ndim != 2:
            raise ValueError(f"positions have to be [N, C], not {list(positions.shape)}.")
        kernel = self.of_offsets(positions[:, None] - positions)  # not cdist, whose gradient is NaN at 0
        token = torch.arange(len(positions), device=positions.device)
        placed = (token >= num_prefix) & (token[:, None] >= num_prefix)
        return torch.where(placed, kernel, 1.0)

    def numerator(self, fq: Tensor, fk: Tensor, v: Tensor, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j, [B, H, N, d]; with v = 1, the denominator.

        Without the prefix tokens, the positions have to be a regular row-major grid of up to three axes, of any spacing
        and origin, for time and memory as `on_lattice` has them; otherwise, where they need a gradient, and for up to
        `DENSE` tokens, the sum is exact and quadratic in N.

        Args:
            fq, fk: features [B, H, N, m].
            v: [B, H, N, d].
            positions: [N, C].
            num_prefix: leading tokens without a position; lambda is 1 from and to them.
        """
        lattice = self.lattice(positions, num_prefix)
        if lattice is None:
            return (fq @ fk.mT * self.matrix(positions, num_prefix).to(fq.dtype)) @ v
        if not num_prefix:
            return self.on_lattice(fq, fk, v, lattice)
        q, k, values = (x[:, :, num_prefix:] for x in (fq, fk, v))
        beyond = q @ (fk[:, :, :num_prefix].mT @ v[:, :, :num_prefix])  # what placed tokens get from the prefix
        placed = self.on_lattice(q, k, values, lattice) + beyond
        return torch.cat([fq[:, :, :num_prefix] @ (fk.mT @ v), placed], dim=2)

    def lattice(self, positions: Tensor, num_prefix: int) -> Lattice | None:
        """The grid of the tokens behind the prefix; None where N x N is to be used: few tokens, no regular grid, or
        positions that need a gradient; or transforms and export, which the walks have no rule for."""
        if positions.requires_grad or len(positions) <= DENSE or plain():
            return None
        found = find_lattice(positions[num_prefix:])
        if found is None:
            warn_once(
                log,
                "grid",
                f"{len(positions) - num_prefix} positions are no row-major grid (the first axis the slowest, each "
                f"rising in equal steps): weights are N x N",
            )
        return found
