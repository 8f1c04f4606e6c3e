"""The pre-norm transformer block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.feature_maps.random import check_draw, versions
from performer_string.layers.attention import SelfAttention
from performer_string.ops.layout import EVERY_TOKEN, TokenLayout
from performer_string.position.rotation import Rotation


class DropPath(nn.Module):
    """Stochastic depth (arXiv:1603.09382): drop a sample's residual branch with probability `rate`, else scale it up.

    Each of several packed sequences is a sample.

    Args:
        rate: in [0, 1).
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path has to lie in [0, 1), not {rate}.")
        self.rate = rate

    def forward(self, x: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Drop or scale up.

        Args:
            x: [B, N, D].
            lengths: of the sequences that are packed in a batch of one; None for a sequence in each sample.

        Returns:
            [B, N, D].
        """
        if not self.training or self.rate == 0:
            return x
        samples = x.shape[0] if lengths is None else len(lengths)
        keep = torch.empty(samples, *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.rate)
        if lengths is not None:
            counts = torch.tensor(lengths, device=x.device)
            keep = keep.repeat_interleave(counts, dim=0, output_size=x.shape[1]).transpose(0, 1)  # [1, N, 1]
        if torch.finfo(x.dtype).bits < 32:
            return x * keep / (1 - self.rate)  # a rounded 1 / (1 - rate) would be off by the same for all samples
        return x * (keep / (1 - self.rate))


def mlp_width(width: int, ratio: float) -> int:
    """Return the hidden width of an MLP, rounded down; the quotient of two widths as ratio gives the first exactly.

    Raises:
        ValueError: a ratio that gives an MLP of width 0.
    """
    hidden = int(width * ratio + 1e-6)
    if hidden < 1:
        raise ValueError(f"mlp_ratio {ratio} gives an MLP of width 0: take at least {1 / width:.3g}.")
    return hidden


class MLP(nn.Sequential):
    """A linear layer, GELU, and a linear layer, with dropout after each.

    Args:
        width: of the tokens.
        hidden: width between the two layers.
        dropout: rate.
    """

    def __init__(self, width: int, hidden: int, dropout: float = 0.0):
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        if not (self.dropout and self.training):
            return cast(Tensor, super().forward(x))
        first, activation, second = self
        return F.dropout(second(F.dropout(activation(first(x)), self.dropout)), self.dropout)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Tokens [B, N, D].

    Args:
        attention: the attention layer.
        width: D.
        mlp_ratio: hidden width of the MLP over D.
        drop_path: rate of stochastic depth.
        norm_eps: of the layer norms.
        dropout: rate within and after the MLP, and after attention.

    Raises:
        ValueError: a ratio that gives an MLP of width 0.
    """

    def __init__(
        self,
        attention: SelfAttention,
        width: int,
        mlp_ratio: float,
        drop_path: float,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ):
        super().__init__()
        hidden = mlp_width(width, mlp_ratio)
        self.norm1, self.norm2 = nn.LayerNorm(width, norm_eps), nn.LayerNorm(width, norm_eps)
        self.attention = attention
        self.mlp = MLP(width, hidden, dropout)
        self.drop_path, self.dropout = DropPath(drop_path), dropout

    def forward(self, x: Tensor, rotation: Rotation, layout: TokenLayout = EVERY_TOKEN) -> Tensor:
        attended = self.attention(self.norm1(x), rotation, layout)
        if self.dropout and self.training:
            attended = F.dropout(attended, self.dropout)
        x = x + self.drop_path(attended, layout.lengths)
        return x + self.drop_path(self.mlp(self.norm2(x)), layout.lengths)


def recomputable(block: Block) -> Callable[..., Tensor]:
    """Return a block for gradient checkpointing; a redraw of its features before the backward pass is an error."""
    if torch.compiler.is_compiling():
        return block
    backend = block.attention.backend  # not the whole block: statistics of its other parts may change
    drawn = versions(backend.buffers())

    def compute(*arguments: Any) -> Tensor:
        check_draw(backend.buffers(), drawn)
        return cast(Tensor, block(*arguments))

    return compute
