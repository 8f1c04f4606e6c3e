"""FAVOR+: random features of the exponential kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.feature_maps.base import ALL, Heads, inner_products
from performer_string.feature_maps.random import RandomFeatures
from performer_string.ops.forms import FeatureForm
from performer_string.utils.dtype import full_precision
from performer_string.utils.validation import check_positive


class PositiveFeatures(RandomFeatures):
    """FAVOR+, phi(x) = m^-1/2 exp(W x' - |x'|^2 / 2) with x' = sqrt(s) x, so that E phi(q)^T phi(k) = exp(s q^T k).

    Stabilisation: each feature of the keys is divided by its maximum over the keys, and that of the queries multiplied
    by it. Then each query is divided by its largest feature. Both cancel exactly, so that no epsilon is needed. The
    largest feature of a query is 1, and some key has 1 in the same feature. So the denominator is at least 1. (A
    maximum for each key would change the weights of keys.)

    Source: Choromanski et al., arXiv:2009.14794, Lemma 1.

    Args:
        scale: scale s of the logits, d^-1/2 by default. The other arguments are those of `RandomFeatures`.

    Raises:
        ValueError: a scale that is not positive.
    """

    scale: float

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_features: int = 256,
        seed: int = 0,
        *,
        learned: bool = False,
        scale: float | None = None,
    ):
        super().__init__(head_dim, num_heads, num_features, seed, learned=learned)
        self.scale = head_dim**-0.5 if scale is None else scale
        check_positive("the scale of the logits", self.scale)

    def logits(self, x: Tensor, heads: Heads = ALL) -> tuple[Tensor, Tensor]:
        """Return W x' and |x'|^2 / 2.

        Args:
            x: queries or keys of these heads, [.., d].
            heads: index of the heads whose features are computed: a slice, a list or a number.

        Returns:
            Projections and half squared norms, [.., m] and [.., 1].
        """
        x = full_precision(x) * self.scale**0.5
        return self.project(x, heads), x.square().sum(-1, keepdim=True) / 2

    def queries(self, q: Tensor) -> Tensor:
        """Return phi(q) by its definition for queries [B, H, N, d], [B, H, N, m]."""
        projected, half_square = self.logits(q)
        return (projected - half_square).exp() * self.num_features**-0.5

    @torch.no_grad()
    def key_scale(self, k: Tensor, masked: Tensor | None = None) -> Tensor:
        """Return the logarithm of the maximum of each feature over the keys, [B, H, 1, m]."""
        projected, half_square = self.logits(k)
        if masked is not None:
            half_square = half_square.masked_fill(masked, torch.inf)
        largest = (projected - half_square).amax(dim=-2, keepdim=True)  # [B, H, 1, m]
        return largest.clamp(min=torch.finfo(largest.dtype).min)  # finite where every key is masked

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        """Return features of queries [.., d], multiplied by exp(scale), over their maximum for each query: [.., m]."""
        logits = self.logits(q, heads)[0] + scale  # without |q|^2 / 2, a factor of each query
        return logits.sub_(logits.detach().amax(dim=-1, keepdim=True)).exp_()

    def scaled_keys(self, k: Tensor, scale: Tensor, masked: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        """Return features of keys [.., d] over exp(scale), zero where masked: [.., m]."""
        projected, half_square = self.logits(k, heads)
        if masked is not None:
            half_square = half_square.masked_fill(masked, torch.inf)
        return (projected - half_square).sub_(scale).exp_()

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Return s q_i^T k_j, [B, H, Nq, Nk]."""
        return inner_products(q, k) * self.scale

    def form(self) -> FeatureForm | None:
        """Return the map as fused kernels know it: an exponential."""
        return FeatureForm("exponential", self.exact_projection() * self.scale**0.5, square=self.scale / 2)


class HyperbolicFeatures(PositiveFeatures):
    """FAVOR+ in hyperbolic pairs, phi(x) = m^-1/2 [exp(W x'), exp(-W x')] exp(-|x'|^2 / 2), with m / 2 projections.

    The variance is lower than that of m independent projections, at half of the products. Source: arXiv:2009.14794,
    Lemma 1, the cosh form.

    Args:
        num_features: width m of phi, even. The other arguments are those of `PositiveFeatures`.

    Raises:
        ValueError: an odd number of features, or as `PositiveFeatures` raises.
    """

    def num_projections(self) -> int:
        """Return the number of rows of W, m / 2."""
        if self.num_features % 2:
            raise ValueError(f"favor+hyperbolic: num_features must be even (pairs), not {self.num_features}.")
        return self.num_features // 2

    def logits(self, x: Tensor, heads: Heads = ALL) -> tuple[Tensor, Tensor]:
        """Return [W x', -W x'] and |x'|^2 / 2, as in `PositiveFeatures`."""
        projected, half_square = super().logits(x, heads)
        return torch.cat([projected, -projected], dim=-1), half_square

    def form(self) -> FeatureForm | None:
        """Return the map as fused kernels know it: an exponential, of W and of -W."""
        weight = self.exact_projection() * self.scale**0.5
        return FeatureForm("exponential", torch.cat([weight, -weight], dim=1), square=self.scale / 2)
