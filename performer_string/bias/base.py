"""Relative biases of attention: the interface, the definition by N x N matrices, and the choice of a faster sum."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from performer_string.bias.linear_time import decayed_attention
from performer_string.feature_maps import FeatureMap
from performer_string.ops import reference
from performer_string.ops.layout import Grid, TokenLayout, find_grid
from performer_string.utils._compat import needs_plain_operations
from performer_string.utils.log import warn_once
from performer_string.utils.numerics import safe_divide
from performer_string.utils.validation import check_sizes

log = logging.getLogger(__name__)

BLOCK_SIDES = (8, 16)  # tokens along an axis of a block; the side of lower predicted cost is taken


@dataclass(frozen=True)
class Split:
    """A way to sum a head's bias over a grid: over a window of tokens, through a coarse grid of nodes, or by both.

    Nodes stand for the tokens around them: their sums are collected, blurred and read out (a bilateral grid).

    Attributes:
        radius: radius of the window, in patches; None without a window.
        spacing: largest distance between neighbouring nodes, in patches; None without nodes.
        first: index of the first Gaussian component that is summed through the nodes.
        block: tokens along each axis of a block, for the exact sum of a decay with `rates` (without window and nodes),
            or None.
    """

    radius: float | None
    spacing: float | None
    first: int
    block: int | None = None


class RelativeBias(nn.Module):
    """A factor lambda(p_i - p_j) of the attention weights for each head; 1 where either token is a prefix token.

    With A the attention weights without the bias, softmax or linear,

        o_i = sum_j A_ij lambda_ij v_j                           unless `normalised`
        o_i = sum_j A_ij lambda_ij v_j / sum_j A_ij lambda_ij    if `normalised`

    The second form is attention with log lambda added to its logits.

    A subclass must define `of_offsets` alone. On a regular grid its sum is then exact, in memory linear in N and in
    time quadratic in it. Time is linear too where `splits` bound the window, or with `components` or `rates`.

    Args:
        num_heads: number H of heads.
        normalised: whether the denominator has lambda too.

    Raises:
        ValueError: a number of heads that is no positive integer.
    """

    # The most for which N x N matrices are used, which are faster on a CPU, and exact, as sums over a grid may not be.
    max_dense_tokens = 256

    def __init__(self, num_heads: int, normalised: bool):
        super().__init__()
        check_sizes(num_heads=num_heads)
        self.num_heads, self.normalised = num_heads, normalised

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """Return lambda(r) of offsets r [..., C] in patches: [H or 1, ...], at least 0 if normalised.

        By default it is the exponential of a subclass's `log_of_offsets`.
        """
        if type(self).log_of_offsets is RelativeBias.log_of_offsets:
            raise NotImplementedError
        return self.log_of_offsets(offsets).exp()

    def log_of_offsets(self, offsets: Tensor) -> Tensor:
        """Return log lambda(r) of offsets [..., C], which softmax adds to its logits: [H or 1, ...]."""
        factors = self.of_offsets(offsets)
        positive = factors > 0
        return torch.where(positive, torch.where(positive, factors, 1.0).log(), -torch.inf)

    def components(self) -> tuple[Tensor, Tensor]:
        """Return Gaussians whose sum is lambda, exactly or nearly; none by default.

        Returns:
            Amplitudes [H, G], and widths in patches, which rise along G: [H, G], or [H, G, C] with one for each axis,
            in the same proportions for all G.
        """
        empty = torch.empty(self.num_heads, 0)
        return empty, empty

    def rates(self) -> Tensor | None:
        """Return the rates for which lambda is exp(-sum_c rate_c |r_c|), for each patch of distance; None by default.

        Returns:
            Rates, [H, C, 2], for keys of lower and higher coordinates than the query's; infinity for no weight.
        """
        return None

    def log_columns(self, positions: Tensor, num_prefix: int = 0) -> tuple[Tensor, Tensor] | None:
        """Return columns a and b of the tokens with log lambda(p_i - p_j) = <a_i, b_j>; None by default.

        With them softmax attention needs no N x N numbers.

        Args:
            positions: positions of the tokens, [N, C], prefix tokens first, whose columns are zero.
            num_prefix: leading tokens without a position.

        Returns:
            Columns a and b, [H, N, c] each.
        """
        return None

    def splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return the ways to sum lambda over a grid within its error bound.

        By default this is an unbounded window, and blocks for a decay with `rates`. Both are exact.

        Args:
            widths: widths of the head's Gaussian components along the first axis, in patches. Other axes are scaled to
                it.
            dim: number of axes of the grid.
        """
        blocks = [] if self.rates() is None else [Split(None, None, 0, side) for side in BLOCK_SIDES]
        return [*blocks, Split(math.inf, None, len(widths))]

    def learned(self) -> dict[str, Tensor]:
        """Return the learned values to log, by name: [H] each; none by default."""
        return {}

    def per_head(self, offsets: Tensor) -> Tensor:
        """Return `of_offsets` for every head, [H, ...].

        Raises:
            ValueError: an `of_offsets` that returns another shape than it should.
        """
        factors, shape = self.of_offsets(offsets), (self.num_heads, *offsets.shape[:-1])
        if factors.shape not in (shape, (1, *shape[1:])):
            raise ValueError(
                f"{type(self).__name__}.of_offsets() must be {list(shape)} of offsets {list(offsets.shape)}, or have "
                f"1 in place of its {self.num_heads} heads, not {list(factors.shape)}."
            )
        return factors.expand(shape)

    def matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """Return lambda(p_i - p_j) for all pairs of tokens, 1 where either is a prefix token.

        Args:
            positions: positions of the tokens, [N, C], prefix tokens first.
            num_prefix: leading tokens without a position.

        Returns:
            Factors lambda, [H, N, N].
        """
        factors = self.per_head(pairwise_offsets(positions))
        return torch.where(has_offset(positions, num_prefix), factors, 1.0)

    def log_matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """Return the logarithm of `matrix`, also where that underflows: [H or 1, N, N]."""
        logs = self.log_of_offsets(pairwise_offsets(positions))
        return torch.where(has_offset(positions, num_prefix), logs, 0.0)

    def modulate(self, weights: Tensor, layout: TokenLayout, rows: slice = slice(None)) -> Tensor:
        """Return the weights that the values are summed with, for analysis.

        Args:
            weights: rows of the attention without lambda, [B, H, n, N].
            layout: positions of the tokens.
            rows: slice of the queries whose rows `weights` holds.

        Returns:
            Weights, [B, H, n, N].
        """
        assert layout.positions is not None
        matrix = self.matrix(layout.positions, layout.num_prefix)
        return reference.modulated_weights(weights, matrix[:, rows], self.normalised)

    def attend(self, phi: FeatureMap, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Return the outputs of linear attention with lambda: over the grid of `grid_of`, or by an N x N matrix.

        Args:
            phi: the feature map.
            q, k, v: rotated queries, rotated keys and values, [B, H, N, d].
            layout: positions [N, C] of the tokens, and the mask of those that take part.

        Returns:
            Outputs, [B, H, N, d], in the type of the features.
        """
        grid = self.grid_of(layout)
        if grid is not None:
            return decayed_attention(self, phi, q, k, v, layout, grid)
        assert layout.positions is not None
        fq, fk = phi.pair(q, k, layout.mask)  # [B, H, N, m]
        weights = fq @ fk.mT * self.matrix(layout.positions, layout.num_prefix).to(fq.dtype)
        total = weights.sum(-1, keepdim=True) if self.normalised else fq @ fk.sum(dim=-2)[..., None]
        return safe_divide(weights @ v.to(fk.dtype), total)

    def grid_of(self, layout: TokenLayout) -> Grid | None:
        """Return the grid of the tokens after the prefix, or None where an N x N matrix is to be used.

        A matrix is used for few tokens, and for positions that need a gradient or are no regular row-major grid of up
        to three axes. It is also used under transforms and in exports, which have no rule for the sums over a grid.
        """
        positions, num_prefix = layout.positions, layout.num_prefix
        assert positions is not None
        needs_gradient = positions.requires_grad and torch.is_grad_enabled()
        plain = needs_plain_operations() or positions.is_meta  # the plan looks at the learned widths
        if plain or needs_gradient or positions.shape[0] <= self.max_dense_tokens:  # not len(), for exports
            return None
        grid = layout.grid or find_grid(positions[num_prefix:])
        if grid is None:
            count, dim = len(positions) - num_prefix, positions.shape[-1]
            reason = "are no row-major grid (the first axis the slowest, each rising in equal steps)"
            reason = reason if dim <= 3 else f"have {dim} axes, and grids are known of up to three"
            warn_once(log, "grid" if dim <= 3 else "axes", f"{count} positions {reason}: weights are N x N")
        return grid


def pairwise_offsets(positions: Tensor) -> Tensor:
    """Return p_i - p_j for all pairs, [N, C] -> [N, N, C].

    Raises:
        ValueError: positions of other than two axes.
    """
    if positions.ndim != 2:
        raise ValueError(
            f"a relative bias takes positions [N, C] that all samples share, not {list(positions.shape)}: pack samples "
            f"that have positions of their own (cu_seqlens, or the lengths of a TokenLayout)."
        )
    if not positions.is_floating_point():
        positions = positions.long()  # short and unsigned integers would wrap around
    return positions[:, None] - positions  # not cdist, whose gradient is NaN at 0


def has_offset(positions: Tensor, num_prefix: int) -> Tensor:
    """Return a mask of the pairs of tokens of which neither is one of the first `num_prefix`, [N, N]."""
    is_patch = torch.arange(positions.shape[0], device=positions.device) >= num_prefix
    return is_patch & is_patch[:, None]
