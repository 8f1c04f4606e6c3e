"""Gates on the values and outputs for each head and token, or for each of their channels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from performer_string.layers.values.base import ValueMap, Weighted
from performer_string.ops.layout import TokenLayout
from performer_string.position.base import Sizes
from performer_string.utils.registry import choose

Source = Literal["token", "query"]


class FiberGating(ValueMap):
    """Gated outputs o_i = g_i sum_j A_ij v_j, with a gate 0 < g < 2 for each head and token.

    The gate is g_i = 2 sigmoid(w_h . x_i + b_h) of the token x_i, or g_i = 2 sigmoid(w_h . q_i + b_h) of its query. It
    is 1 where its argument is 0. Where the basis B of an encoding is folded into the projections, q stands for B^T q.
    With `channels` it is a vector over the channels of the value, g_i = 2 sigmoid(W_h q_i + b_h) and o_i = g_i * sum_j
    A_ij v_j. This is the dynamic fiber gating of RiemannFormer (arXiv:2506.07405, section 2.4).

    Args:
        sizes: sizes of the attention.
        source: input of the gate, `token` or `query`.
        channels: whether each channel of a value has a gate of its own.

    Raises:
        ValueError: an unknown source.
    """

    def __init__(self, sizes: Sizes, *, source: Source = "token", channels: bool = False):
        super().__init__(sizes)
        self.source: Source = choose("source of the gate", source, Source)
        width = sizes.head_dim * sizes.num_heads if source == "token" else sizes.qk_dim or sizes.head_dim
        gates = (sizes.num_heads, sizes.head_dim) if channels else (sizes.num_heads,)
        self.weight = nn.Parameter(torch.randn(*gates, width) * 0.02)
        self.bias = nn.Parameter(torch.zeros(gates))

    def gates(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """Return g, [B, H, N, 1 or d], of tokens [B, N, H d] or queries [B, H, N, d']."""
        heads, width = len(self.bias), self.weight.shape[-1]
        weight, bias = self.weight.view(heads, -1, width), self.bias.view(heads, 1, -1)
        if self.source == "token":
            logits = torch.einsum("bnw,hcw->bhnc", tokens, weight.to(tokens.dtype))
        else:
            logits = torch.einsum("bhnw,hcw->bhnc", queries, weight.to(queries.dtype))
        return 2 * (logits + bias).sigmoid()

    def forward(self, attend: Weighted, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return g_i sum_j A_ij v_j; arguments as those of `ValueMap`."""
        return attend(v) * self.gates(tokens, queries).to(v.dtype)


class MetricGating(FiberGating):
    """Outputs o_i = sum_j A_ij g_i g_j v_j, with the gates of `FiberGating` for each pair of tokens.

    It is RiemannFormer's metric scaling outside of the softmax (third version): the denominator does not have it.
    """

    def forward(self, attend: Weighted, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j A_ij g_i g_j v_j; arguments as those of `ValueMap`."""
        gates = self.gates(tokens, queries).to(v.dtype)  # [B, H, N, 1 or d]
        return attend(v * gates) * gates
