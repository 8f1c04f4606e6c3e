"""Pooling of tokens to one vector: their mean, or attention by learned queries, in time linear in their number."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from performer_string.layers.block import MLP
from performer_string.ops.layout import AttentionContext, TokenLayout
from performer_string.ops.softmax import attend_softmax
from performer_string.utils.dtype import without_autocast
from performer_string.utils.validation import check_heads


def mean_pool(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of the tokens that take part.

    Args:
        x: tokens, [B, N, D].
        mask: mask of the tokens, [B, N], True for tokens to attend to; None for all.

    Returns:
        Means, [B, D], zeros where no token takes part.
    """
    if mask is None:
        return x.mean(dim=1)
    dtype = torch.promote_types(x.dtype, torch.float32)  # sums of many tokens overflow in fp16
    total = x.masked_fill(~mask[..., None], 0.0).sum(dim=1, dtype=dtype)
    return (total / mask.sum(dim=1, keepdim=True).clamp(min=1)).to(x.dtype)


class AttentionPool(nn.Module):
    """Pooling by attention: o_h = sum_j softmax_j(w_h . x_j / sqrt D) x_j^(h), a learned query w_h for each head h.

    Multi-head attention (arXiv:1810.00825, section 3.2) with one seed and without projections: tokens are the keys, and
    their parts x^(h) of D / H dimensions the values. Queries start at zero, so that it starts as the mean. It sees no
    positions, and keeps the invariance of the tokens.

    Args:
        width: width D of the tokens.
        num_heads: number H of heads, a divisor of D.

    Raises:
        ValueError: a width that the heads do not divide.
    """

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        check_heads(width, num_heads)
        self.query = nn.Parameter(torch.zeros(num_heads, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens, with logits and softmax in float32 or better.

        Args:
            x: tokens, [B, N, D].
            mask: mask of the tokens, [B, N], True for tokens to attend to; None for all.

        Returns:
            Pooled tokens, [B, D] in the type of x, zeros where no token takes part.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        heads, width = self.query.shape
        with without_autocast(x):
            logits = x.to(dtype) @ self.query.to(dtype).mT * width**-0.5  # [B, N, H]
            if mask is not None:
                logits = logits.masked_fill(~mask[..., None], torch.finfo(dtype).min)
            weights = logits.softmax(dim=1)
            if mask is not None:  # or all weights would be equal where every token is masked
                weights = weights.masked_fill(~mask[..., None], 0.0)
            parts = x.to(dtype).unflatten(-1, (heads, -1))  # [B, N, H, D / H]
            return (weights[..., None] * parts).sum(dim=1).flatten(-2).to(x.dtype)  # [B, H, D / H] -> [B, D]


class MapPool(nn.Module):
    """Pooling by a layer with one learned query: attention to the tokens, and a residual MLP after it.

    The "MAP head" of ViT-G (arXiv:2106.04560, section 3) and SigLIP (arXiv:2303.15343), timm's `AttentionPoolLatent`.

    Args:
        width: width D of the tokens.
        num_heads: number H of heads, a divisor of D.
        hidden: hidden width of the MLP inside.
        norm_eps: epsilon of the layer norm.

    Raises:
        ValueError: a width that the heads do not divide.
    """

    def __init__(self, width: int, num_heads: int, hidden: int, norm_eps: float):
        super().__init__()
        check_heads(width, num_heads)
        self.num_heads = num_heads
        self.query = nn.Parameter(nn.init.trunc_normal_(torch.empty(width), std=width**-0.5))
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, norm_eps)
        self.mlp = MLP(width, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens.

        Args:
            x: tokens, [B, N, D].
            mask: mask of the tokens, [B, N], True for tokens to attend to; None for all.

        Returns:
            Pooled tokens, [B, D], the same for every sample where no token takes part.
        """
        heads = (self.num_heads, -1)
        query = self.q(self.query.to(x.dtype)[None])  # [1, D]: quantised layers take no vector
        q = query.unflatten(-1, heads)[:, :, None].expand(x.shape[0], -1, -1, -1)  # [B, H, 1, d]
        k, v = self.kv(x).unflatten(-1, (2, *heads)).permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, N, d] each
        out = attend_softmax(q, k, v, AttentionContext(None, None, TokenLayout(mask=mask)))
        pooled = self.out(out.flatten(1))  # [B, H, 1, d] -> [B, D]
        return cast(Tensor, pooled + self.mlp(self.norm(pooled)))


def build_pool(name: str, width: int, num_heads: int, hidden: int, norm_eps: float) -> nn.Module | None:
    """Return the module of a pooling by its name; None for `mean` and `cls`, which have no weights.

    Args:
        name: name of the pooling: `mean`, `cls`, `attention` or `map`.
        width, num_heads: width D of the tokens and number H of heads.
        hidden, norm_eps: hidden width of the MLP and epsilon of the norm of `map`.
    """
    if name == "attention":
        return AttentionPool(width, num_heads)
    return MapPool(width, num_heads, hidden, norm_eps) if name == "map" else None
