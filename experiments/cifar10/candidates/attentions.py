"""Attentions of this folder's tables: `mean-query`, `norm-aware` and `injective`, each on top of a feature map.

Sweeps import it as `experiments.cifar10.candidates.attentions`. The first two are also examples of
docs/guides/own-attention.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from performer_string import ATTENTIONS, AttentionBackend
from performer_string.feature_maps import FeatureMap
from performer_string.layers.backends import LinearBackend
from performer_string.ops.layout import AttentionContext
from performer_string.ops.rotary import rotate_pair
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
        mean = torch.einsum("bn,bhnd->bhd", shares, q) / shares.sum(-1)[:, None, None]
        bias = self.factor * torch.einsum("bhd,bhnd->bhn", mean, k)
        if context.key_bias is not None:
            bias = bias + context.key_bias
        return super().attend(q, k, v, replace(context, rotation=None, key_bias=bias))


class NormAware(AttentionBackend):
    """Linear attention with a second term that keeps the size of the features of a query.

    o_i = sum_j k_ij v_j / sum_j k_ij + (c / N) sum_j k_ij (v_j - mean v), with a learned c of each head.
    Undivided, the first term is mean v: the injective attention of arXiv:2412.06590, section 4.1, there with c = N.
    In the manner of arXiv:2507.00698 (MALA) for the sum of both.

    Args:
        phi: feature map.
        start: initial c.
        divided: whether the first term is linear attention, else the mean of the values.
    """

    lacks = frozenset({"locality", "key mask"})

    def __init__(self, phi: FeatureMap, *, start: float = 0.1, divided: bool = True):
        super().__init__()
        self.phi, self.divided = phi, divided
        self.share = torch.nn.Parameter(torch.full((phi.num_heads, 1, 1), start))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        q, k = rotate_pair(full_precision(q), full_precision(k), context.rotation)
        with without_autocast(q):  # sums over many tokens would lose digits in 16 bits
            fq, fk, v = self.phi.queries(q), self.phi.keys(k), v.to(q)
            if context.key_bias is not None:
                fk = fk * context.key_bias.to(fk).exp()[..., None]
            sums = fq @ (fk.mT @ v)
            norms = fq @ fk.sum(-2)[..., None]
            mean = v.mean(-2, keepdim=True)
            residual = (sums - norms * mean) / v.shape[-2]
            return (sums / norms if self.divided else mean) + self.share * residual


class Injective(NormAware):
    """`NormAware` whose first term is the mean of the values.

    Args:
        phi: feature map.
        start: initial c.
    """

    def __init__(self, phi: FeatureMap, *, start: float = 1.0):
        super().__init__(phi, start=start, divided=False)


ATTENTIONS.update({"mean-query": MeanQuery, "norm-aware": NormAware, "injective": Injective})
