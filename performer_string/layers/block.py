"""The pre-norm transformer block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from performer_string.feature_maps.random import check_draw, versions
from performer_string.layers.attention import SelfAttention
from performer_string.ops.layout import EVERY_TOKEN, TokenLayout
from performer_string.position.rotation import Rotation
from performer_string.utils.validation import check_kind


class DropPath(nn.Module):
    """Stochastic depth (arXiv:1603.09382): drop a sample's residual branch with probability `rate`, else scale it up.

    Each of several packed sequences is a sample.

    Args:
        rate: drop rate, in [0, 1).
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path must lie in [0, 1), not {rate}.")
        self.rate = rate

    def forward(self, x: Tensor, layout: TokenLayout = EVERY_TOKEN) -> Tensor:
        """Drop the branch of random samples, and scale up the branch of all others.

        Args:
            x: outputs of the residual branch, [B, N, D].
            layout: layout of the tokens. Each of its packed sequences is a sample.

        Returns:
            Outputs with drops, [B, N, D].
        """
        if not self.training or self.rate == 0:
            return x
        samples = x.shape[0] if layout.lengths is None else len(layout.lengths)
        keep = torch.empty(samples, *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.rate)
        if layout.lengths is not None:
            counts = layout.counts(x.device)
            keep = keep.repeat_interleave(counts, dim=0, output_size=x.shape[1]).transpose(0, 1)  # [1, N, 1]
        if torch.finfo(x.dtype).bits < 32:
            return x * keep / (1 - self.rate)  # a rounded 1 / (1 - rate) would bias all samples
        return x * (keep / (1 - self.rate))


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch.

    Args:
        width: width D of the tokens.
        value: value at which all factors start, such as 1e-4.

    Source: arXiv:2103.17239 (CaiT), section 2.
    """

    def __init__(self, width: int, value: float):
        super().__init__()
        self.factors = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a branch times the factors: [B, N, D] -> [B, N, D]."""
        return x * self.factors


def mlp_width(width: int, ratio: float) -> int:
    """Return the hidden width of an MLP, rounded down. The ratio of two whole widths gives the first of them exactly.

    Raises:
        ValueError: a ratio that gives an MLP of width 0.
    """
    hidden = int(width * ratio + 1e-6)
    if hidden < 1:
        raise ValueError(f"mlp_ratio {ratio} gives an MLP of width 0: take at least {1 / width:.3g}.")
    return hidden


class MLP(nn.Sequential):
    """A linear layer, GELU, and a linear layer, with dropout after GELU and at the end.

    Args:
        width: width D of the tokens.
        hidden: hidden width, between the two layers.
        dropout: dropout rate, in [0, 1).
    """

    def __init__(self, width: int, hidden: int, dropout: float = 0.0):
        super().__init__()
        parts = {"0": nn.Linear(width, hidden), "1": nn.GELU(), "dropout": nn.Dropout(dropout)}
        parts |= {"2": nn.Linear(hidden, width), "out_dropout": nn.Dropout(dropout)}
        for name, part in parts.items():  # the names of the weights are those of a model without dropout
            if dropout or not isinstance(part, nn.Dropout):
                self.add_module(name, part)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), each branch with its LayerScale. Tokens [B, N, D].

    Args:
        attention: attention layer.
        width: width D of the tokens.
        mlp_ratio: ratio of the MLP's hidden width to D.
        drop_path: rate of stochastic depth.
        norm_eps: epsilon of the layer norms.
        dropout: dropout rate within and after the MLP, and after attention.
        layer_scale: value at which the learned factors of both branches start; None for no factors.

    Raises:
        TypeError: an attention that is no module.
        ValueError: a ratio that gives an MLP of width 0.
    """

    def __init__(
        self,
        attention: SelfAttention,
        width: int,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
        layer_scale: float | None = None,
    ):
        super().__init__()
        check_kind("attention", attention, nn.Module, "SelfAttention(...)")
        hidden = mlp_width(width, mlp_ratio)
        self.norm1, self.norm2 = nn.LayerNorm(width, norm_eps), nn.LayerNorm(width, norm_eps)
        self.attention = attention
        self.mlp = MLP(width, hidden, dropout)
        self.scale1, self.scale2 = (
            nn.Identity() if layer_scale is None else LayerScale(width, layer_scale) for _ in range(2)
        )
        self.drop_path = DropPath(drop_path)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor, rotation: Rotation | None = None, layout: TokenLayout = EVERY_TOKEN) -> Tensor:
        attended = self.scale1(self.dropout(self.attention(self.norm1(x), rotation, layout)))
        x = x + self.drop_path(attended, layout)
        return x + self.drop_path(self.scale2(self.mlp(self.norm2(x))), layout)


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
