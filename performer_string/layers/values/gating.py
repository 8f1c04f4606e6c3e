"""Gates on the values, of each head and token."""

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
    """o_i = g_i sum_j A_ij v_j with a gate 0 < g < 2 for each head and token, which is 1 where its argument is 0.

    g_i = 2 sigmoid(w_h . x_i + b_h) of the token x_i, or 2 sigmoid(w_h . q_i + b_h) of its query, which is that of the
    gauge B^T q where the basis B of an encoding is folded into the projections.

    Args:
        source: `token` or `query`.
    """

    def __init__(self, sizes: Sizes, *, source: Source = "token"):
        super().__init__(sizes)
        self.source: Source = lookup("source of the gate", source, {name: name for name in get_args(Source)})
        width = sizes.head_dim * (sizes.num_heads if source == "token" else 1)
        self.weight = nn.Parameter(torch.randn(sizes.num_heads, width) * 0.02)
        self.bias = nn.Parameter(torch.zeros(sizes.num_heads))

    def gates(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """g, [B, H, N]."""
        if self.source == "token":
            logits = torch.einsum("bnw,hw->bhn", tokens, self.weight.to(tokens.dtype))
        else:
            logits = torch.einsum("bhnd,hd->bhn", queries, self.weight.to(queries.dtype))
        return 2 * (logits + self.bias[:, None]).sigmoid()

    def forward(self, attend: Attention, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        return attend(v) * self.gates(tokens, queries)[..., None].to(v.dtype)


class MetricGating(FiberGating):
    """o_i = sum_j A_ij g_i g_j v_j with the gates of `FiberGating`: a metric of each pair from the content of both.

    RiemannFormer's metric scaling outside of the softmax (third version): the weights stay normalised without it.
    """

    def forward(self, attend: Attention, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        gates = self.gates(tokens, queries)[..., None].to(v.dtype)  # [B, H, N, 1]
        return attend(v * gates) * gates
