"""Feature map relu(W [x; bias])^order with isotropic W: model `biased-4` of this folder's tables.

A model chooses by the norms of its queries and keys between the mean of all tokens and the arc-cosine kernel. Use it
with this folder on PYTHONPATH: `--imports '[biased]' --model.vit.feature_map relu-biased
--model.vit.feature_options '{order: 4, num_features: 48, bias: 2.0}'`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.feature_maps import FEATURE_MAPS
from performer_string.feature_maps.arc_cosine import ArcCosineFeatures
from performer_string.feature_maps.base import ALL, Heads
from performer_string.feature_maps.random import orthogonal_projection
from performer_string.utils.seeds import derive_seed


class BiasedFeatures(ArcCosineFeatures):
    """Random features of the arc-cosine kernel of [x; bias]."""

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_features: int = 256,
        seed: int = 0,
        *,
        order: int = 1,
        bias: float = 1.0,
    ):
        self.bias = bias
        super().__init__(head_dim, num_heads, num_features, seed, order=order)

    @property
    def degree(self) -> None:  # type: ignore[override]
        """Degree of homogeneity in x: none."""
        return

    def draw(self, step: int) -> Tensor:
        return orthogonal_projection(
            self.num_heads, self.num_projections(), self.head_dim + 1, derive_seed(self.seed, step)
        )

    def append_bias(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_full((*x.shape[:-1], 1), self.bias)], -1)

    def queries(self, q: Tensor) -> Tensor:
        return super().queries(self.append_bias(q))

    def key_scale(self, k: Tensor, masked: Tensor | None = None) -> Tensor:
        return super().key_scale(self.append_bias(k), masked)

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        q = self.append_bias(q.to(scale.dtype))
        norms = q.norm(dim=-1, keepdim=True).detach()
        return self.power_features(q / (norms * self.row_scale(heads)), heads)

    def scaled_keys(self, k: Tensor, scale: Tensor, masked: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        k = self.append_bias(k.to(scale.dtype)) / (scale * self.row_scale(heads))
        return self.power_features(k if masked is None else k.masked_fill(masked, 0.0), heads)

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        return super().log_kernel(self.append_bias(q), self.append_bias(k))

    def form(self) -> None:
        """No fused kernel computes it."""
        return


FEATURE_MAPS["relu-biased"] = BiasedFeatures
