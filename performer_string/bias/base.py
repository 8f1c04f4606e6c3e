"""Relative biases of attention: the interface, the definition by N x N matrices, and the choice of a faster sum."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.bias.linear_time import SumInputs, decayed_attention, decayed_sum
from performer_string.bias.linear_time.recompute import StoredFeatures, chunk_features
from performer_string.bias.offsets import both_have_positions, pairwise_offsets
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

    max_dense_tokens = 256  # the most for which N x N matrices are used, which are exact, and faster on a CPU

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
        return torch.where(both_have_positions(positions, num_prefix), factors, 1.0)

    def log_matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """Return the logarithm of `matrix`, also where that underflows: [H or 1, N, N]."""
        logs = self.log_of_offsets(pairwise_offsets(positions))
        return torch.where(both_have_positions(positions, num_prefix), logs, 0.0)

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
        """Return the outputs of linear attention with lambda.

        On a grid with many features only those of a chunk of tokens are in memory.

        Args:
            phi: the feature map.
            q, k, v: rotated queries, rotated keys and values, [B, H, N, d].
            layout: positions [N, C] of the tokens, and the mask of those that take part.

        Returns:
            Outputs, [B, H, N, d], in the type of the features.
        """
        # An exported graph is for a batch of any size, so that nothing may depend on the batch there.
        all_fit = needs_plain_operations() or k[..., 0].numel() * phi.num_features <= chunk_features(k.device)
        grid = None if all_fit else self.grid_of(layout)
        if grid is not None:
            return decayed_attention(self, phi, q, k, v, layout, grid)
        fq, fk = phi.pair(q, k, layout.mask)  # [B, H, N, m]
        v = v.to(fk.dtype)
        if self.normalised:
            out = self.numerator(fq, fk, F.pad(v, (0, 1), value=1.0), layout)
            return safe_divide(*out.split((v.shape[-1], 1), dim=-1))
        return safe_divide(self.numerator(fq, fk, v, layout), fq @ fk.sum(dim=-2)[..., None])

    def numerator(self, fq: Tensor, fk: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j; with v = 1, the denominator.

        It goes over the grid of `grid_of` where there is one, and by an N x N matrix elsewhere.

        Args:
            fq, fk: features of the queries and keys, [B, H, N, m].
            v: values, [B, H, N, d].
            layout: positions [N, C] of the tokens.

        Returns:
            Sums, [B, H, N, d].
        """
        grid, num_prefix = self.grid_of(layout), layout.num_prefix
        if grid is None:
            assert layout.positions is not None
            return (fq @ fk.mT * self.matrix(layout.positions, num_prefix).to(fq.dtype)) @ v
        if not num_prefix:
            return self.sum_on_grid(fq, fk, v, grid)
        sizes = (num_prefix, grid.tokens)
        (_, q_grid), (k_prefix, k_grid), (v_prefix, v_grid) = (x.split(sizes, dim=2) for x in (fq, fk, v))
        patches = self.sum_on_grid(q_grid, k_grid, v_grid, grid) + q_grid @ (k_prefix.mT @ v_prefix)
        return torch.cat([fq[:, :, :num_prefix] @ (fk.mT @ v), patches], dim=2)

    def sum_on_grid(self, fq: Tensor, fk: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """Return `numerator` over the tokens of a grid, each head by the cheapest of its `splits`: [B, H, N, d]."""
        return decayed_sum(self, SumInputs(StoredFeatures(fq.shape[-1]), fq, fk, v, grid))[..., :-1]

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
