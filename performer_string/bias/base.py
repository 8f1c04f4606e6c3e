"""Kernels of the offset p_i - p_j on attention: what decays and tables share, dense and over a grid."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.bias.linear_time.plan import Split, decayed_attention, decayed_sum
from performer_string.bias.linear_time.recompute import StoredFeatures, slab_size
from performer_string.feature_maps import FeatureMap
from performer_string.ops import reference
from performer_string.ops.layout import Grid, TokenLayout, find_grid
from performer_string.utils._compat import needs_plain_operations
from performer_string.utils.log import warn_once
from performer_string.utils.numerics import safe_divide

log = logging.getLogger(__name__)

DENSE = 256  # tokens up to which N x N is faster than any walk over a grid, forward and backward on a CPU; and exact


class RelativeBias(nn.Module):
    """lambda(p_i - p_j) for each head; 1 from and to prefix tokens, which have no place.

    o_i = sum_j A_ij lambda_ij v_j, with A the normalised attention; or, if `normalised`, divided by
    sum_j A_ij lambda_ij, as if log lambda were added to the logits.

    `of_offsets` is all that a kernel has to give: on a regular grid its sum is then exact, in memory linear in N and in
    time quadratic in it. With `splits` that end a window, or go through a mixture of Gaussians, time is linear as well.

    Args:
        num_heads: H.
        normalised: whether the denominator sees it too.
    """

    def __init__(self, num_heads: int, normalised: bool):
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads has to be positive, not {num_heads}.")
        self.num_heads, self.normalised = num_heads, normalised

    def of_offsets(self, offsets: Tensor) -> Tensor:
        """lambda(r) of r [..., C] in patches, [H or 1, ...]; 0 or more if normalised."""
        raise NotImplementedError

    def log_of_offsets(self, offsets: Tensor) -> Tensor:
        """log lambda(r), [H or 1, ...]: what softmax adds to its logits."""
        kernel = self.of_offsets(offsets)
        some = kernel > 0
        return torch.where(some, torch.where(some, kernel, 1.0).log(), -torch.inf)

    def of_heads(self, offsets: Tensor) -> Tensor:
        """`of_offsets`, [H, ...]."""
        kernel, shape = self.of_offsets(offsets), (self.num_heads, *offsets.shape[:-1])
        if kernel.shape not in (shape, (1, *shape[1:])):
            raise ValueError(
                f"{type(self).__name__}.of_offsets() has to be {list(shape)} of offsets {list(offsets.shape)}, or have "
                f"1 in place of its {self.num_heads} heads, not {list(kernel.shape)}."
            )
        return kernel.expand(shape)

    def components(self) -> tuple[Tensor, Tensor]:
        """Amplitudes and widths [H, G], widths rising, of Gaussians whose sum is lambda, or nearly; none by default."""
        none = torch.empty(self.num_heads, 0)
        return none, none

    def splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """The ways to sum lambda over a grid, for a head of these widths and a grid of `dim` axes: by default a window
        without an end."""
        return [Split(math.inf, None, len(widths))]

    def needs_all_features(self, grid: Grid, features: int, width: int) -> bool:
        """Return whether `sum_on_grid` needs the features of all tokens at once."""
        return False

    def learned(self) -> dict[str, Tensor]:
        """What to log of it, by name, [H] each."""
        return {}

    def matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """lambda(p_i - p_j), [H, N, N]; 1 where either is one of the first `num_prefix` tokens, which have no place.

        Args:
            positions: [N, C].
        """
        return torch.where(placed(positions, num_prefix), self.of_heads(between(positions)), 1.0)

    def log_matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """The logarithm of `matrix`, also where that is too small for a number."""
        return torch.where(placed(positions, num_prefix), self.log_of_offsets(between(positions)), 0.0)

    def modulate(self, weights: Tensor, layout: TokenLayout, rows: slice = slice(None)) -> Tensor:
        """Return what the values are summed with, for study.

        Args:
            weights: rows of the normalised attention, [B, H, n, N].
            layout: positions of the tokens.
            rows: which queries the weights are of.
        """
        assert layout.positions is not None
        matrix = self.matrix(layout.positions, layout.num_prefix)
        return reference.modulated_weights(weights, matrix[:, rows], self.normalised)

    def numerator(self, fq: Tensor, fk: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j; with v = 1, the denominator.

        Linear in N where the tokens behind the prefix are a regular row-major grid of up to three axes, of any spacing
        and origin. Exact and N x N for other positions, for ones that need a gradient, and for up to `DENSE` tokens.

        Args:
            fq, fk: features [B, H, N, m].
            v: [B, H, N, d].
            layout: positions [N, C] of the tokens. lambda is 1 from and to prefix tokens.

        Returns:
            [B, H, N, d].
        """
        grid, num_prefix = self.grid_of(layout), layout.num_prefix
        if grid is None:
            assert layout.positions is not None
            return (fq @ fk.mT * self.matrix(layout.positions, num_prefix).to(fq.dtype)) @ v
        if not num_prefix:
            return self.sum_on_grid(fq, fk, v, grid)
        q, k, values = (x[:, :, num_prefix:] for x in (fq, fk, v))
        from_prefix = q @ (fk[:, :, :num_prefix].mT @ v[:, :, :num_prefix])
        patches = self.sum_on_grid(q, k, values, grid) + from_prefix
        return torch.cat([fq[:, :, :num_prefix] @ (fk.mT @ v), patches], dim=2)

    def sum_on_grid(self, fq: Tensor, fk: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """Return `numerator` over the tokens of a grid, without prefix tokens.

        Each head takes that of its `splits` which is predicted to cost least.
        """
        return decayed_sum(self, StoredFeatures(fq.shape[-1]), fq, fk, v, grid)[..., :-1]

    def attend(self, phi: FeatureMap, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Linear attention with lambda in it.

        On a grid, features are held for a slab of tokens at a time, unless `needs_all_features`.

        Args:
            phi: the feature map.
            q, k, v: [B, H, N, d], queries and keys rotated.
            layout: positions [N, C] of the tokens, and which take part.

        Returns:
            [B, H, N, d], in the type of the features.
        """
        features_per_sample = k.shape[1] * k.shape[2] * phi.num_features
        # An exported graph is for any batch.
        few = needs_plain_operations() or k.shape[0] * features_per_sample <= slab_size(k.device)
        grid = None if few else self.grid_of(layout)
        if grid is None or self.needs_all_features(grid, phi.num_features, v.shape[-1]):
            fq, fk = phi.pair(q, k, layout.mask)  # [B, H, N, m]
            v = v.to(fk.dtype)
            if self.normalised:
                out = self.numerator(fq, fk, F.pad(v, (0, 1), value=1.0), layout)
                return safe_divide(*out.split((v.shape[-1], 1), dim=-1))
            return safe_divide(self.numerator(fq, fk, v, layout), fq @ fk.sum(dim=-2)[..., None])
        dtype = torch.promote_types(k.dtype, torch.float32)
        samples = max(1, slab_size(k.device) // features_per_sample)
        groups = [x.to(dtype).split(samples) for x in (q, k, v)]  # slices would have gradients of all samples
        masked = [None] * len(k) if layout.mask is None else (~layout.mask)[:, None, :, None].split(samples)
        outs = []
        for group_q, group_k, group_v, group_masked in zip(*groups, masked, strict=False):
            outs.append(decayed_attention(self, phi, group_q, group_k, group_v, group_masked, grid, layout.num_prefix))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def grid_of(self, layout: TokenLayout) -> Grid | None:
        """Return the grid of the tokens behind the prefix, or None where N x N is to be used.

        N x N is for few tokens, positions that are no regular grid or need a gradient, and for transforms and export,
        which the sums over a grid have no rule for.
        """
        positions, num_prefix = layout.positions, layout.num_prefix
        assert positions is not None
        needs_gradient = positions.requires_grad and torch.is_grad_enabled()
        if needs_gradient or len(positions) <= DENSE or needs_plain_operations():
            return None
        grid = layout.grid or find_grid(positions[num_prefix:])
        if grid is None:
            count, dim = len(positions) - num_prefix, positions.shape[-1]
            reason = "are no row-major grid (the first axis the slowest, each rising in equal steps)"
            reason = reason if dim <= 3 else f"have {dim} axes, and grids are known of up to three"
            warn_once(log, "grid" if dim <= 3 else "axes", f"{count} positions {reason}: weights are N x N")
        return grid


def between(positions: Tensor) -> Tensor:
    """p_i - p_j, [N, C] -> [N, N, C]."""
    if positions.ndim != 2:
        raise ValueError(f"positions have to be [N, C], not {list(positions.shape)}.")
    return positions[:, None] - positions  # not cdist, whose gradient is NaN at 0


def placed(positions: Tensor, num_prefix: int) -> Tensor:
    """Which pairs of tokens both have a place, [N, N]: the first `num_prefix` have none."""
    has = torch.arange(len(positions), device=positions.device) >= num_prefix
    return has & has[:, None]
