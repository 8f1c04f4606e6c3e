"""ELU plus one, the feature map of the linear transformer."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.feature_maps.base import ALL, FeatureMap, Heads
from performer_string.utils.dtype import full_precision, without_autocast


class EluFeatures(FeatureMap):
    """phi(x) = elu(x) + 1, entry by entry, with m = d features: a baseline.

    Its kernel depends on more than inner products and norms. So attention is not translation invariant where queries
    and keys are rotated before the map, not even in the mean. It is where the features are rotated
    (`linear-rotated-features`).

    Stabilisation: where all entries of a query are negative, their maximum c is subtracted from each of them. Likewise
    for all keys of a head. The features are then exp(x), so that this is a common factor exp(-c).

    Source: Katharopoulos et al., arXiv:2006.16236, section 3.2.

    Args:
        head_dim: width d of a head.
        num_heads: number H of heads.
    """

    isotropic = False

    def __init__(self, head_dim: int, num_heads: int):
        super().__init__(head_dim, num_heads, head_dim)

    def queries(self, q: Tensor) -> Tensor:
        """Return phi(q) by its definition for queries [..., d], [..., d]."""
        q = full_precision(q)
        positive = q > 0  # elu(q) + 1 would lose digits of a small exp(q)
        return torch.where(positive, q + 1, q.masked_fill(positive, 0.0).exp())

    @torch.no_grad()
    def key_scale(self, k: Tensor, masked: Tensor | None = None) -> Tensor:
        """Return the largest entry of the keys of each head if it is negative and else zero, [B, H, 1, 1]."""
        k = full_precision(k)
        if masked is not None:
            k = k.masked_fill(masked, torch.finfo(k.dtype).min)
        return k.amax(dim=(-2, -1), keepdim=True).clamp(max=0.0)

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        """Return features of queries [.., d]; those of an all-negative query are divided by the largest: [.., d]."""
        q = full_precision(q)
        return self.queries(q - q.detach().amax(-1, keepdim=True).clamp(max=0.0))

    def scaled_keys(self, k: Tensor, scale: Tensor, masked: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        """Return features of keys [.., d] over exp(scale), zero where masked: [.., d]."""
        features = self.queries(full_precision(k) - scale)
        return features if masked is None else features.masked_fill(masked, 0.0)

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the logarithm of phi(q_i)^T phi(k_j), [B, H, Nq, Nk].

        As in attention, the largest entry of an all-negative query or key is taken out and added to the logarithm.
        """
        q, k = full_precision(q), full_precision(k)
        with without_autocast(q):
            top_q, top_k = (x.amax(-1, keepdim=True).clamp(max=0.0) for x in (q, k))
            return (self.queries(q - top_q) @ self.queries(k - top_k).mT).log() + top_q + top_k.mT
