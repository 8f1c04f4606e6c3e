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
    """FAVOR+: phi(x) = m^-1/2 exp(W x' - |x'|^2 / 2) with x' = sqrt(scale) x; E phi(q)^T phi(k) = exp(scale q^T k).

    Source: Choromanski et al., arXiv:2009.14794, Lemma 1.

    Args:
        scale: of the logits, d^-1/2 unless given.
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
        """W x' and |x'|^2 / 2, [.., m] and [.., 1]."""
        x = full_precision(x) * self.scale**0.5
        return self.project(x, heads), x.square().sum(-1, keepdim=True) / 2

    def queries(self, q: Tensor) -> Tensor:
        projected, half_square = self.logits(q)
        return (projected - half_square).exp() * self.num_features**-0.5

    # A maximum for each feature over the tokens leaves the keys and enters the queries, then a maximum for each query
    # leaves those. Both cancel exactly, so that no epsilon is needed: the best feature of a query has value 1, and so
    # has its largest key, hence the denominator is at least 1. (A maximum for each key reweights keys.)

    @torch.no_grad()
    def key_scale(self, k: Tensor, hidden: Tensor | None = None) -> Tensor:
        projected, half_square = self.logits(k)
        if hidden is not None:
            half_square = half_square.masked_fill(hidden, torch.inf)
        largest = (projected - half_square).amax(dim=-2, keepdim=True)  # [B, H, 1, m]
        return largest.clamp(min=torch.finfo(largest.dtype).min)  # where every key is masked

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        logits = self.logits(q, heads)[0] + scale  # |q|^2 is a factor of each query
        return logits.sub_(logits.detach().amax(dim=-1, keepdim=True)).exp_()

    def scaled_keys(self, k: Tensor, scale: Tensor, hidden: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        projected, half_square = self.logits(k, heads)
        if hidden is not None:
            half_square = half_square.masked_fill(hidden, torch.inf)
        return (projected - half_square).sub_(scale).exp_()

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        return inner_products(q, k) * self.scale

    def form(self) -> FeatureForm | None:
        return FeatureForm("exponential", self.exact_projection() * self.scale**0.5, square=self.scale / 2)


class HyperbolicFeatures(PositiveFeatures):
    """FAVOR+ in hyperbolic pairs: phi(x) = m^-1/2 [exp(W x'), exp(-W x')] exp(-|x'|^2 / 2), with m / 2 draws.

    Lower variance than m independent draws, at half the projections (arXiv:2009.14794, Lemma 1, the cosh form).
    """

    def draws(self) -> int:
        if self.num_features % 2:
            raise ValueError(f"favor+hyperbolic: num_features has to be even (pairs), not {self.num_features}.")
        return self.num_features // 2

    def logits(self, x: Tensor, heads: Heads = ALL) -> tuple[Tensor, Tensor]:
        projected, half_square = super().logits(x, heads)
        return torch.cat([projected, -projected], dim=-1), half_square

    def form(self) -> FeatureForm | None:
        weight = self.exact_projection() * self.scale**0.5
        return FeatureForm("exponential", weight, mirrored=True, square=self.scale / 2)
