"""relu(W [x; bias])^order: `--imports '[biased]' --model.vit.feature_map relu-biased`, this folder on PYTHONPATH."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.feature_maps import FEATURE_MAPS, derive_seed
from performer_string.feature_maps.arc_cosine import ArcCosineFeatures
from performer_string.feature_maps.base import ALL, Heads
from performer_string.feature_maps.random import orthogonal_projection


class Biased(ArcCosineFeatures):
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
    def degree(self):
        return None

    def draw(self, step: int) -> Tensor:
        return orthogonal_projection(
            self.num_heads, self.num_projections(), self.head_dim + 1, derive_seed(self.seed, step)
        )

    def more(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_full((*x.shape[:-1], 1), self.bias)], -1)

    def queries(self, q):
        return super().queries(self.more(q))

    def key_scale(self, k, masked=None):
        return super().key_scale(self.more(k), masked)

    def scaled_queries(self, q, scale, heads: Heads = ALL):
        q = self.more(q.to(scale.dtype))
        norms = q.norm(dim=-1, keepdim=True).detach()
        return self.power_features(q / (norms * self.row_scale(heads)), heads)

    def scaled_keys(self, k, scale, masked=None, heads: Heads = ALL):
        k = self.more(k.to(scale.dtype)) / (scale * self.row_scale(heads))
        return self.power_features(k if masked is None else k.masked_fill(masked, 0.0), heads)

    def log_kernel(self, q, k):
        return super().log_kernel(self.more(q), self.more(k))

    def form(self):
        return None


FEATURE_MAPS["relu-biased"] = Biased
