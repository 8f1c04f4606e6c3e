"""Attentions of this folder's models: `mean-query`, `convolved` and `norm-aware`, each on top of a feature map.

The first and the last are the examples of docs/guides/own-attention.md, the last with the bias of `key_gate` too.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from performer_string import ATTENTIONS, AttentionBackend
from performer_string.feature_maps import FeatureMap
from performer_string.layers.backends import LinearBackend
from performer_string.layers.values.lepe import LocalEnhancement
from performer_string.ops.layout import AttentionContext
from performer_string.ops.rotary import rotate_pair
from performer_string.position.base import Sizes
from performer_string.utils.dtype import full_precision, without_autocast


class MeanQuery(LinearBackend):
    """Linear attention whose keys have the weight exp(s q_mean . k_j), with a learned s of each head.

    Source: arXiv:2411.07635, section 3.2 (RALA); there it is a softmax over keys with s = d^-1/2.

    Args:
        phi: feature map.
        start: initial s, in units of d^-1/2.
    """

    def __init__(self, phi: FeatureMap, *, start: float = 1.0):
        super().__init__(phi)
        self.factor = torch.nn.Parameter(torch.full((phi.num_heads, 1), start * phi.head_dim**-0.5))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        q, k = rotate_pair(q, k, context.rotation)
        mask = context.layout.mask
        shares = q.new_ones(q.shape[0], q.shape[2]) if mask is None else mask.to(q)
        mean = torch.einsum("bn,bhnd->bhd", shares, q) / shares.sum(-1).clamp(min=1)[:, None, None]
        bias = self.factor * torch.einsum("bhd,bhnd->bhn", mean, k)
        if context.key_bias is not None:
            bias = bias + context.key_bias
        return super().attend(q, k, v, replace(context, rotation=None, key_bias=bias))


class Convolved(LinearBackend):
    """Linear attention whose queries and keys have a depthwise convolution of 3 x 3 patches added, zero at first.

    In the manner of arXiv:2103.15808 (CvT), where convolutions make the projections. There are no figures of the
    weights during training, which are drawn without positions.
    """

    def __init__(self, phi: FeatureMap):
        super().__init__(phi)
        sizes = Sizes(head_dim=phi.head_dim, num_heads=phi.num_heads, coord_dim=2)
        self.for_queries, self.for_keys = LocalEnhancement(sizes), LocalEnhancement(sizes)
        torch.nn.init.zeros_(self.for_queries.weight)
        torch.nn.init.zeros_(self.for_keys.weight)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        q = q + self.for_queries.enhancement(q, context.layout)
        k = k + self.for_keys.enhancement(k, context.layout)
        return super().attend(q, k, v, context)


class NormAware(AttentionBackend):
    """Linear attention with a second term that keeps the size of the features of a query.

    o_i = sum_j k_ij v_j / sum_j k_ij + (c / N) sum_j k_ij (v_j - mean v), with a learned c of each head, in the manner
    of arXiv:2507.00698 (MALA).

    Args:
        phi: feature map.
        start: initial c.
    """

    lacks = frozenset({"locality", "key mask"})

    def __init__(self, phi: FeatureMap, *, start: float = 0.1):
        super().__init__()
        self.phi = phi
        self.share = torch.nn.Parameter(torch.full((phi.num_heads, 1, 1), start))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        q, k = rotate_pair(full_precision(q), full_precision(k), context.rotation)
        with without_autocast(q):  # sums over many tokens would lose digits in 16 bits
            fq, fk, v = self.phi.queries(q), self.phi.keys(k), v.to(q)
            if context.key_bias is not None:
                fk = fk * context.key_bias.to(fk).exp()[..., None]
            sums = fq @ (fk.mT @ v)
            norms = fq @ fk.sum(-2)[..., None]
            residual = (sums - norms * v.mean(-2, keepdim=True)) / v.shape[-2]
            return sums / norms + self.share * residual


ATTENTIONS.update({"mean-query": MeanQuery, "convolved": Convolved, "norm-aware": NormAware})
