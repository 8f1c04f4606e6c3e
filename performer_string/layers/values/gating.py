"""Gates on the values and outputs for each head and token."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from performer_string.layers.values.base import Attention, ValueMap
from performer_string.ops.layout import TokenLayout
from performer_string.position.base import Sizes
from performer_string.utils.registry import lookup

Source = Literal["token", "query"]


class FiberGating(ValueMap):
    """Gated outputs o_i = g_i sum_j A_ij v_j, with a gate 0 < g < 2 for each head and token.

    The gate is g_i = 2 sigmoid(w_h . x_i + b_h) of the token x_i, or g_i = 2 sigmoid(w_h . q_i + b_h) of its query. It
    is 1 where its argument is 0. Where the basis B of an encoding is folded into the projections, q stands for B^T q.

    Args:
        sizes: of the attention.
        source: of the gate, `token` or `query`.

    Raises:
        ValueError: an unknown source.
    """

    def __init__(self, sizes: Sizes, *, source: Source = "token"):
        super().__init__(sizes)
        self.source: Source = lookup("source of the gate", source, {name: name for name in get_args(Source)})
        width = sizes.head_dim * sizes.num_heads if source == "token" else sizes.qk_dim or sizes.head_dim
        self.weight = nn.Parameter(torch.randn(sizes.num_heads, width) * 0.02)
        self.bias = nn.Parameter(torch.zeros(sizes.num_heads))

    def gates(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """Return g, [B, H, N], of tokens [B, N, H d] or queries [B, H, N, d']."""
        if self.source == "token":
            logits = torch.einsum("bnw,hw->bhn", tokens, self.weight.to(tokens.dtype))
        else:
            logits = torch.einsum("bhnd,hd->bhn", queries, self.weight.to(queries.dtype))
        return 2 * (logits + self.bias[:, None]).sigmoid()

    def forward(self, attend: Attention, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return g_i sum_j A_ij v_j; arguments as those of `ValueMap`."""
        return attend(v) * self.gates(tokens, queries)[..., None].to(v.dtype)


class MetricGating(FiberGating):
    """Outputs o_i = sum_j A_ij g_i g_j v_j, with the gates of `FiberGating` for each pair of tokens.

    It is RiemannFormer's metric scaling outside of the softmax (third version): the denominator does not have it.
    """

    def forward(self, attend: Attention, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j A_ij g_i g_j v_j; arguments as those of `ValueMap`."""
        gates = self.gates(tokens, queries)[..., None].to(v.dtype)  # [B, H, N, 1]
        return attend(v * gates) * gates
