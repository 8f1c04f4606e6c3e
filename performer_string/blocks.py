"""The block around attention, and those of a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from performer_string.attend import build_attention
from performer_string.config import ViTConfig
from performer_string.features import derive_seed
from performer_string.features.draws import check_draw, versions
from performer_string.layers import SelfAttention
from performer_string.locality import build_locality
from performer_string.locality.lattice import Lattice
from performer_string.rotation import Rotation
from performer_string.values import build_value_map


class DropPath(nn.Module):
    """Stochastic depth: a sample's residual branch is left out with probability `rate`, and scaled up otherwise."""

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path has to lie in [0, 1), not {rate}.")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.empty(x.shape[0], *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * keep.bernoulli_(1 - self.rate) / (1 - self.rate)


def again(block: Block) -> Callable[..., Tensor]:
    """A block to be computed a second time in the backward pass: with the random features of the first, or an error."""
    if torch.compiler.is_compiling():
        return block
    attend = block.attention.attend  # and not all of the block: statistics of its other parts may change
    drawn = versions(attend.buffers())

    def compute(*given: Any) -> Tensor:
        check_draw(attend.buffers(), drawn)
        return cast(Tensor, block(*given))

    return compute


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Tokens [B, N, D]."""

    def __init__(
        self, attention: SelfAttention, width: int, mlp_ratio: float, drop_path: float, norm_eps: float = 1e-5
    ):
        super().__init__()
        hidden = int(width * mlp_ratio + 1e-6)  # a ratio that was a quotient of the two gives its numerator
        self.norm1, self.norm2 = nn.LayerNorm(width, norm_eps), nn.LayerNorm(width, norm_eps)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        positions: Tensor,
        num_prefix: int,
        key_mask: Tensor | None = None,
        places: Tensor | None = None,
        lattice: Lattice | None = None,
    ) -> Tensor:
        given = {"positions": positions, "num_prefix": num_prefix, "places": places, "lattice": lattice}
        x = x + self.drop_path(self.attention(self.norm1(x), rotation, key_mask, **given))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def build_block(config: ViTConfig, layer: int, grid: tuple[int, ...], num_prefix: int) -> Block:
    """The block of this layer, from 0 on, with random features of its own.

    Args:
        grid: that of training.
        num_prefix: tokens without a place.
    """
    c, width, depth, heads = config, cast(int, config.width), cast(int, config.depth), cast(int, config.num_heads)
    head_dim, locality, values = width // heads, None, None
    attend = build_attention(
        c.attention,
        head_dim=head_dim,
        num_heads=heads,
        feature_map=c.feature_map,
        seed=derive_seed(c.seed, "features", layer),
        feature_options=c.feature_options,
    )
    if c.locality is not None:
        locality = build_locality(c.locality, num_heads=heads, grid=grid, **c.locality_options)
    if c.values is not None:
        sizes = {"head_dim": head_dim, "num_heads": heads, "coord_dim": len(grid)}
        values = build_value_map(c.values, grid=grid, **sizes, **c.value_options)
    attention = SelfAttention(
        width,
        heads,
        attend,
        qk_norm=c.qk_norm,
        max_temperature=c.max_temperature,
        log_scale=math.prod(grid) + num_prefix if c.log_scale else None,
        key_gate=c.key_gate,
        locality=locality,
        values=values,
    )
    drop_path = c.drop_path * (layer / (depth - 1) if depth > 1 else 1.0)
    return Block(attention, width, c.mlp_ratio, drop_path, c.norm_eps)
