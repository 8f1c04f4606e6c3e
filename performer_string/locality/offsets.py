"""Kernels of the offset p_i - p_j on attention: what decays and tables share, dense and over a grid."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.features import FeatureMap
from performer_string.locality.focusing import Split, divide, focus, focused_attention
from performer_string.locality.lattice import Lattice, find_lattice
from performer_string.locality.slabs import Given, slab_size
from performer_string.logs import warn_once
from performer_string.modes import plain

log = logging.getLogger(__name__)

DENSE = 256  # tokens up to which N x N is faster than any walk over a grid, forward and backward on a CPU; and exact


class OffsetKernel(nn.Module):
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

    def whole(self, lattice: Lattice, features: int, width: int) -> bool:
        """Whether `on_lattice` is to have the features of all tokens at once."""
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

    def numerator(self, fq: Tensor, fk: Tensor, v: Tensor, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j, [B, H, N, d]; with v = 1, the denominator.

        Without the prefix tokens, the positions have to be a regular row-major grid of up to three axes, of any spacing
        and origin, for time and memory as `splits` have them; otherwise, where they need a gradient, and for up to
        `DENSE` tokens, the sum is exact and N x N.

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
        own = self.on_lattice(q, k, values, lattice) + beyond
        return torch.cat([fq[:, :, :num_prefix] @ (fk.mT @ v), own], dim=2)

    def on_lattice(self, fq: Tensor, fk: Tensor, v: Tensor, lattice: Lattice) -> Tensor:
        """`numerator` over the tokens of a grid, without prefix tokens: for each head by that of its `splits` which is
        predicted to cost least."""
        return focus(self, Given(fq.shape[-1]), fq, fk, v, lattice)[..., :-1]

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
        """Linear attention with lambda in it: q, k, v [B, H, N, d] -> [B, H, N, d], in the type of the features.

        On a grid, features are held for a slab of tokens at a time, but for those of a `whole` sum.
        """
        sample = k.shape[1] * k.shape[2] * phi.num_features  # features of one
        few = plain() or k.shape[0] * sample <= slab_size(k.device)  # an exported graph is for any batch
        lattice = None if few else self.lattice(positions, num_prefix)
        if lattice is None or self.whole(lattice, phi.num_features, v.shape[-1]):
            fq, fk = phi.pair(q, k, key_mask)  # [B, H, N, m]
            v = v.to(fk.dtype)
            if self.normalised:
                out = self.numerator(fq, fk, F.pad(v, (0, 1), value=1.0), positions, num_prefix)
                return divide(*out.split((v.shape[-1], 1), dim=-1))
            return divide(self.numerator(fq, fk, v, positions, num_prefix), fq @ fk.sum(dim=-2)[..., None])
        dtype = torch.promote_types(k.dtype, torch.float32)
        together = max(1, slab_size(k.device) // sample)
        groups = [x.to(dtype).split(together) for x in (q, k, v)]  # slices would have gradients of all samples
        masks = [None] * len(k) if key_mask is None else (~key_mask)[:, None, :, None].split(together)  # [B, 1, N, 1]
        outs = []
        for own_q, own_k, own_v, hidden in zip(*groups, masks, strict=False):
            outs.append(focused_attention(self, phi, own_q, own_k, own_v, hidden, lattice, num_prefix))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def lattice(self, positions: Tensor, num_prefix: int) -> Lattice | None:
        """The grid of the tokens behind the prefix; None where N x N is to be used: few tokens, no regular grid, or
        positions that need a gradient; or transforms and export, which the walks have no rule for."""
        learned = positions.requires_grad and torch.is_grad_enabled()
        if learned or len(positions) <= DENSE or plain():
            return None
        found = find_lattice(positions[num_prefix:])
        if found is None:
            count, dim = len(positions) - num_prefix, positions.shape[-1]
            reason = "are no row-major grid (the first axis the slowest, each rising in equal steps)"
            reason = reason if dim <= 3 else f"have {dim} axes, and grids are known of up to three"
            warn_once(log, "grid" if dim <= 3 else "axes", f"{count} positions {reason}: weights are N x N")
        return found


def between(positions: Tensor) -> Tensor:
    """p_i - p_j, [N, C] -> [N, N, C]."""
    if positions.ndim != 2:
        raise ValueError(f"positions have to be [N, C], not {list(positions.shape)}.")
    return positions[:, None] - positions  # not cdist, whose gradient is NaN at 0


def placed(positions: Tensor, num_prefix: int) -> Tensor:
    """Which pairs of tokens both have a place, [N, N]: the first `num_prefix` have none."""
    has = torch.arange(len(positions), device=positions.device) >= num_prefix
    return has & has[:, None]
