"""FAVOR+: random features of the exponential kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from performer_string.features.base import FeatureForm, RandomFeatures, inner_products


class PositiveFeatures(RandomFeatures):
    """FAVOR+: phi(x) = m^-1/2 exp(W x' - |x'|^2 / 2) with x' = sqrt(scale) x; E phi(q)^T phi(k) = exp(scale q^T k).

    Source: Choromanski et al., arXiv:2009.14794, Lemma 1.

    Args:
        scale: of the logits, d^-1/2 unless given.
    """

    def __init__(
        self, head_dim: int, num_heads: int, num_features: int = 256, seed: int = 0, *, scale: float | None = None
    ):
        super().__init__(head_dim, num_heads, num_features, seed)
        self.scale = head_dim**-0.5 if scale is None else scale
        if self.scale <= 0:
            raise ValueError(f"the scale of the logits has to be positive, not {scale}.")

    def exponents(self, x: Tensor) -> Tensor:
        """log(m^1/2 phi(x)), [B, H, N, m]."""
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.scale**0.5
        return self.project(x) - x.square().sum(-1, keepdim=True) / 2

    def queries(self, q: Tensor) -> Tensor:
        return self.exponents(q).exp() * self.num_features**-0.5

    def pair(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # A maximum for each feature over the tokens leaves the keys and enters the queries, then a maximum for each
        # query leaves those. Both cancel exactly, so that no epsilon is needed: the best feature of a query has value
        # 1, and so has its largest key, hence the denominator is at least 1. (A maximum for each key reweights keys.)
        log_q, log_k = self.exponents(q), self.exponents(k)
        if key_mask is not None:
            log_k = log_k.masked_fill(~key_mask[:, None, :, None], -math.inf)
        with torch.no_grad():
            largest = log_k.amax(dim=-2, keepdim=True)  # [B, H, 1, m]
            largest = largest.masked_fill(largest == -math.inf, 0.0)  # where every key is masked
        log_q = log_q + largest
        return (log_q - log_q.detach().amax(dim=-1, keepdim=True)).exp(), (log_k - largest).exp()

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        return inner_products(q, k) * self.scale

    def form(self) -> FeatureForm | None:
        return FeatureForm("exponential", self.projection * self.scale**0.5, square=self.scale / 2)


class HyperbolicFeatures(PositiveFeatures):
    """FAVOR+ in hyperbolic pairs: phi(x) = m^-1/2 [exp(W x'), exp(-W x')] exp(-|x'|^2 / 2), with m / 2 draws.

    Lower variance than m independent draws, at half the projections (arXiv:2009.14794, Lemma 1, the cosh form).
    """

    def draws(self) -> int:
        if self.num_features % 2:
            raise ValueError(f"favor+hyperbolic: num_features has to be even (pairs), not {self.num_features}.")
        return self.num_features // 2

    def exponents(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.scale**0.5
        projected = self.project(x)
        return torch.cat([projected, -projected], dim=-1) - x.square().sum(-1, keepdim=True) / 2

    def form(self) -> FeatureForm | None:
        return FeatureForm("exponential", self.projection * self.scale**0.5, mirrored=True, square=self.scale / 2)
