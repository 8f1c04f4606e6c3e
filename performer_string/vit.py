"""A pre-norm Vision Transformer with any encoding, any attention and any input size that its patches divide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import torch
from einops import rearrange
from torch import Tensor, nn

from performer_string.choices import lookup
from performer_string.encodings import Encoding, build_encoding
from performer_string.features import derive_seed
from performer_string.layers import ATTENTIONS, Attend, SelfAttention, build_attention
from performer_string.locality import LOCALITIES, Locality, build_locality
from performer_string.pooling import AttentionPool
from performer_string.positions import PositionMode, grid_positions, with_prefix
from performer_string.rotation import Rotation
from performer_string.values import VALUE_MAPS, ValueMap, build_value_map

VARIANTS: dict[str, dict[str, int]] = {
    "micro": {"width": 48, "depth": 4, "num_heads": 4},  # small enough for a CPU
    "tiny": {"width": 192, "depth": 12, "num_heads": 3},  # DeiT-Ti, arXiv:2012.12877 table 1
    "small": {"width": 384, "depth": 12, "num_heads": 6},  # DeiT-S, the same
    "base": {"width": 768, "depth": 12, "num_heads": 12},  # ViT-B, arXiv:2010.11929 table 1
}

Pool = Literal["mean", "cls", "attention"]


def as_pair(size: int | Sequence[int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"a size is a positive number or two (height, width), not {size}.")
    return pair


@dataclass
class ViTConfig:
    """Everything that defines a ViT.

    Attributes:
        image_size: training size in pixels, a number or [height, width]; other sizes are welcome later.
        patch_size: a number or [height, width].
        in_channels: of the images.
        num_classes: of the head.
        variant: width, depth and num_heads together, by name: micro, tiny, small or base.
        width: D; overrides the variant, as do `depth` and `num_heads`.
        depth: number of blocks.
        num_heads: H.
        mlp_ratio: hidden width of the MLP over D.
        attention: `linear`, `softmax` or `performer-pytorch`.
        feature_map: `favor+`, `favor+hyperbolic`, `relu` or `polynomial`; softmax has none, and leaves this and
            the next unused.
        feature_options: of the feature map: `num_features`, `order`, `scale`, `lower`.
        encoding: a name in `ENCODINGS`.
        encoding_options: of the encoding.
        locality: a name in `LOCALITIES`: values are attenuated by distance, with a sigma for each layer and head.
            Prefix tokens have no place, so that with pool `cls` the last layer's has no effect.
        locality_options: of the locality.
        values: a name in `VALUE_MAPS`: a structure on the values, one for each layer.
        value_options: of that structure.
        share_layers: one set of generators for all layers instead of one for each.
        positions: `extrapolate` (spacing preserved), `interpolate` (squeezed into the training grid) or `unit`.
        centred: positions relative to their mean.
        pool: `mean` over the patches, a `cls` token, or `attention` over the patches with learned queries.
        registers: number of register tokens (arXiv:2309.16588).
        qk_norm: unit queries and keys with a learned temperature.
        max_temperature: its bound.
        log_scale: logits times log N / log N_train for N tokens; not for homogeneous feature maps (`relu`, and
            `polynomial` without `lower`), which see no factor of the logits.
        drop_path: stochastic depth (arXiv:1603.09382), growing linearly to this rate at the last block.
        seed: of the random features.
    """

    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    in_channels: int = 3
    num_classes: int = 1000
    variant: str = "tiny"
    width: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_ratio: float = 4.0
    attention: str = "linear"
    feature_map: str = "favor+"
    feature_options: dict[str, Any] = field(default_factory=dict)
    encoding: str = "circulant-string"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    locality: str | None = None
    locality_options: dict[str, Any] = field(default_factory=dict)
    values: str | None = None
    value_options: dict[str, Any] = field(default_factory=dict)
    share_layers: bool = False
    positions: PositionMode = "extrapolate"
    centred: bool = False
    pool: Pool = "mean"
    registers: int = 0
    qk_norm: bool = False
    max_temperature: float = 16.0
    log_scale: bool = False
    drop_path: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = lookup("ViT variant", self.variant, VARIANTS)
        self.width = sizes["width"] if self.width is None else self.width
        self.depth = sizes["depth"] if self.depth is None else self.depth
        self.num_heads = sizes["num_heads"] if self.num_heads is None else self.num_heads
        lookup("attention", self.attention, ATTENTIONS)
        lookup("pooling", self.pool, dict.fromkeys(get_args(Pool)))
        for kind, name, options, table in (
            ("locality", self.locality, self.locality_options, LOCALITIES),
            ("value map", self.values, self.value_options, VALUE_MAPS),
        ):
            if name is not None:
                lookup(kind, name, table)
            elif options:
                raise ValueError(f"options of a {kind}, {options}, but none is named. Known: {', '.join(table)}.")
        if self.locality is not None and self.attention == "performer-pytorch":
            raise ValueError('attention "performer-pytorch" has no locality; use "linear" or "softmax".')
        lookup("position mode", self.positions, dict.fromkeys(get_args(PositionMode)))
        for name in ("width", "depth", "num_heads", "in_channels", "num_classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} has to be positive, not {getattr(self, name)}.")
        if self.registers < 0:
            raise ValueError(f"registers has to be 0 or more, not {self.registers}.")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path has to lie in [0, 1), not {self.drop_path}.")


class DropPath(nn.Module):
    """Stochastic depth: a sample's residual branch is left out with probability `rate`, and scaled up otherwise."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.empty(x.shape[0], *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * keep.bernoulli_(1 - self.rate) / (1 - self.rate)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Tokens [B, N, D]."""

    def __init__(self, attention: SelfAttention, width: int, mlp_ratio: float, drop_path: float):
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, rotation: Rotation, positions: Tensor, num_prefix: int) -> Tensor:
        attended = self.attention(self.norm1(x), rotation, positions=positions, num_prefix=num_prefix)
        x = x + self.drop_path(attended)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    """Images [B, channels, height, width] to logits [B, classes]; `ViTConfig` says what can be chosen."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        c = self.config = config
        width, depth, heads = cast(int, c.width), cast(int, c.depth), cast(int, c.num_heads)
        if width % heads:
            raise ValueError(f"the width {width} is not divisible by {heads} heads.")
        self.patch = as_pair(c.patch_size)
        self.train_grid = self.grid(*as_pair(c.image_size))
        self.num_prefix = c.registers + (c.pool == "cls")

        self.embed = nn.Linear(c.in_channels * self.patch[0] * self.patch[1], width)
        self.prefix = nn.Parameter(torch.randn(self.num_prefix, width) * 0.02) if self.num_prefix else None

        sizes = {"head_dim": width // heads, "num_heads": heads, "coord_dim": 2}

        def encoding() -> Encoding:
            return build_encoding(c.encoding, grid=self.train_grid, **sizes, **c.encoding_options)

        def locality() -> Locality | None:
            return None if c.locality is None else build_locality(c.locality, num_heads=heads, **c.locality_options)

        def values() -> ValueMap | None:
            if c.values is None:
                return None
            return build_value_map(c.values, grid=self.train_grid, **sizes, **c.value_options)

        first = encoding()
        learned = any(p.requires_grad for p in first.parameters())
        one = c.share_layers or first.additive or not learned  # what would be equal in every layer is built once
        self.encodings = nn.ModuleList([first] if one else [first, *(encoding() for _ in range(1, depth))])

        self.blocks = nn.ModuleList()
        for layer in range(depth):
            attend = build_attention(
                c.attention,
                head_dim=width // heads,
                num_heads=heads,
                feature_map=c.feature_map,
                seed=derive_seed(c.seed, "features", layer),
                feature_options=c.feature_options,
            )
            attention = SelfAttention(
                width,
                heads,
                attend,
                qk_norm=c.qk_norm,
                max_temperature=c.max_temperature,
                log_scale=math.prod(self.train_grid) + self.num_prefix if c.log_scale else None,
                locality=locality(),
                values=values(),
            )
            self.blocks.append(Block(attention, width, c.mlp_ratio, c.drop_path * layer / max(depth - 1, 1)))
        self.norm = nn.LayerNorm(width)
        self.pool = AttentionPool(width, heads) if c.pool == "attention" else None
        self.head = nn.Linear(width, c.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Patches along each axis of an image."""
        if height % self.patch[0] or width % self.patch[1]:
            raise ValueError(
                f"an image of {height} x {width} pixels is not divisible into patches of {self.patch[0]} x "
                f"{self.patch[1]}. Resize it, for example to {max(height // self.patch[0], 1) * self.patch[0]} x "
                f"{max(width // self.patch[1], 1) * self.patch[1]}."
            )
        return height // self.patch[0], width // self.patch[1]

    def grid_positions(self, grid: tuple[int, int], device: torch.device | None = None) -> Tensor:
        """Positions of the patches of a grid, [N, 2], as the configuration and the encoding want them."""
        mode = self.config.positions if self.encodings[0].extrapolates else "interpolate"
        train_grid = self.train_grid if mode == "interpolate" else None
        return grid_positions(grid, mode=mode, train_grid=train_grid, centred=self.config.centred, device=device)

    def rotations(self, positions: Tensor) -> list[Rotation]:
        """The rotation of each layer at the positions [N, 2] of the patches; prefix tokens stay at the origin."""
        placed = with_prefix(positions, self.num_prefix)
        rotations = [encoding(placed) for encoding in self.encodings]
        return rotations * len(self.blocks) if len(rotations) == 1 else rotations

    def tokens(self, images: Tensor, positions: Tensor | None = None) -> Tensor:
        """What the last norm puts out, prefix tokens first: [B, P + N, D]."""
        if images.ndim != 4 or images.shape[1] != self.config.in_channels:
            raise ValueError(
                f"images have to be [B, {self.config.in_channels}, height, width], not {list(images.shape)}."
            )
        grid = self.grid(*images.shape[-2:])
        if positions is None:
            positions = self.grid_positions(grid, images.device)
        patches = rearrange(images, "b c (h p) (w q) -> b (h w) (c p q)", p=self.patch[0], q=self.patch[1])
        x = self.embed(patches)  # [B, N, D]
        added = cast(Encoding, self.encodings[0]).embedding(positions)
        x = x if added is None else x + added
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(len(x), -1, -1).to(x.dtype), x], dim=1)  # [B, P + N, D]
        placed = with_prefix(positions, self.num_prefix)
        for block, rotation in zip(self.blocks, self.rotations(positions), strict=True):
            x = block(x, rotation, placed, self.num_prefix)
        return cast(Tensor, self.norm(x))

    def forward(self, images: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [B, classes]; `positions` [N, 2] replace those of the images' grid."""
        x = self.tokens(images, positions)
        if self.config.pool == "cls":
            return cast(Tensor, self.head(x[:, 0]))
        patches = x[:, self.num_prefix :]
        pooled = patches.mean(dim=1) if self.pool is None else self.pool(patches)
        return cast(Tensor, self.head(pooled))

    def attends(self) -> list[Attend]:
        """How each layer attends."""
        return [cast(Attend, cast(Block, block).attention.attend) for block in self.blocks]

    def localities(self) -> list[Locality]:
        """The locality of each layer; an empty list where there is none."""
        found = (cast(Block, block).attention.locality for block in self.blocks)
        return [locality for locality in found if locality is not None]

    def redraw(self, step: int) -> None:
        """New random features in every layer, a function of (seed, step) alone."""
        for attend in self.attends():
            attend.redraw(step)
