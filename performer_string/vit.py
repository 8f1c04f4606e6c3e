"""A pre-norm Vision Transformer with any encoding, any attention and any input size that its patches divide."""

from __future__ import annotations

import math
from typing import cast

import torch
from einops import rearrange
from torch import Tensor, nn

from performer_string.attend import Attend, build_attention
from performer_string.config import ViTConfig, as_pair
from performer_string.constants import place_constants
from performer_string.encodings import Encoding, build_encoding
from performer_string.features import derive_seed
from performer_string.kept import Kept
from performer_string.layers import Block, SelfAttention
from performer_string.locality import Locality, build_locality
from performer_string.pooling import AttentionPool
from performer_string.positions import grid_positions, with_prefix
from performer_string.rotation import Rotation
from performer_string.values import ValueMap, build_value_map


class ViT(nn.Module):
    """Images [B, channels, height, width] to logits [B, classes]; `ViTConfig` says what can be chosen."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        if not isinstance(config, ViTConfig):
            raise TypeError(f"a ViT is built as ViT(ViTConfig(...)), not from a {type(config).__name__}.")
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

        def encoding(layers: int) -> Encoding:
            return build_encoding(c.encoding, grid=self.train_grid, layers=layers, **sizes, **c.encoding_options)

        def locality() -> Locality | None:
            return None if c.locality is None else build_locality(c.locality, num_heads=heads, **c.locality_options)

        def values() -> ValueMap | None:
            if c.values is None:
                return None
            return build_value_map(c.values, grid=self.train_grid, **sizes, **c.value_options)

        self.encoding = encoding(1)
        learned = any(p.requires_grad for p in self.encoding.parameters())
        if learned and not (c.share_layers or self.encoding.additive):  # else it would be the same in every layer
            self.encoding = encoding(depth)
        self.kept = Kept(2)  # a rotation of every layer, which LieRE has N x d x d of

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
                key_gate=c.key_gate,
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
        self.register_load_state_dict_post_hook(place_constants)
        if c.tied_start:
            for attention in self.attentions():
                attention.tie()

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
        """Positions of the patches of a grid, [N, 2], as the configuration and the encoding want them; float32, or
        float64 in a model of it."""
        mode, centred = self.config.positions, self.config.centred
        if not self.encoding.extrapolates:  # a place is a place of the training grid
            mode, centred = "interpolate", False
        train_grid = self.train_grid if mode == "interpolate" else None
        dtype = torch.promote_types(self.norm.weight.dtype, torch.float32)
        return grid_positions(grid, mode=mode, train_grid=train_grid, centred=centred, device=device, dtype=dtype)

    def rotations(self, positions: Tensor) -> list[Rotation]:
        """The rotation of each layer at the positions [N, 2] of the patches; prefix tokens stay at the origin."""
        rotations = self.encoding.by_layer(with_prefix(positions, self.num_prefix))
        return rotations * len(self.blocks) if len(rotations) == 1 else rotations

    def grid_rotations(self, grid: tuple[int, int], positions: Tensor) -> list[Rotation]:
        """Those of a grid, which are kept in evaluation for the latest two."""
        if self.training or torch.is_grad_enabled():
            return self.rotations(positions)
        key = (grid, positions.device, positions.dtype, self.config.positions, self.config.centred)
        sources = (*self.encoding.parameters(), *self.encoding.buffers())
        return self.kept.get(key, sources, lambda: self.rotations(positions))

    def tokens(self, images: Tensor, positions: Tensor | None = None) -> Tensor:
        """What the last norm puts out, prefix tokens first: [B, P + N, D]."""
        if images.ndim != 4 or images.shape[1] != self.config.in_channels:
            raise ValueError(
                f"images have to be [B, {self.config.in_channels}, height, width], not {list(images.shape)}."
            )
        if not images.is_floating_point():
            raise TypeError(f"images have to be floating-point, normalised as in training, not {images.dtype}.")
        grid = self.grid(*images.shape[-2:])
        if positions is None:
            positions = self.grid_positions(grid, images.device)
            rotations = self.grid_rotations(grid, positions)
        else:
            if tuple(positions.shape[:-1]) not in ((math.prod(grid),), (len(images), math.prod(grid))):
                raise ValueError(
                    f"positions have to be [N, 2], or [B, N, 2] for each of the {len(images)} images, with one row for "
                    f"each of the {grid[0]} x {grid[1]} patches, not {list(positions.shape)}."
                )
            if self.config.centred and self.encoding.extrapolates:
                positions = positions - positions.mean(dim=-2, keepdim=True)
            rotations = self.rotations(positions)
        patches = rearrange(images, "b c (h p) (w q) -> b (h w) (c p q)", p=self.patch[0], q=self.patch[1])
        x = self.embed(patches.to(self.norm.weight.dtype))  # [B, N, D]; not float32 in a model of another type
        added = self.encoding.embedding(positions)
        x = x if added is None else x + added.to(x.dtype)
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)  # [B, P + N, D]
        placed = with_prefix(positions, self.num_prefix)
        for block, rotation in zip(self.blocks, rotations, strict=True):
            x = block(x, rotation, placed, self.num_prefix)
        return cast(Tensor, self.norm(x))

    def forward(self, images: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [B, classes]; `positions` [N, 2], or [B, N, 2], replace those of the images' grid, centred as those
        are where the configuration says so."""
        x = self.tokens(images, positions)
        if self.config.pool == "cls":
            return cast(Tensor, self.head(x[:, 0]))
        patches = x[:, self.num_prefix :]
        pooled = patches.mean(dim=1) if self.pool is None else self.pool(patches)
        return cast(Tensor, self.head(pooled))

    def attentions(self) -> list[SelfAttention]:
        """The attention of each layer."""
        return [cast(Block, block).attention for block in self.blocks]

    def attends(self) -> list[Attend]:
        """How each layer attends."""
        return [attention.attend for attention in self.attentions()]

    def localities(self) -> list[Locality]:
        """The locality of each layer; an empty list where there is none."""
        found = (attention.locality for attention in self.attentions())
        return [locality for locality in found if locality is not None]

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay would pull off their meaning: all but weights of linear layers."""
        decayed = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Linear)}
        return {name for name, _ in self.named_parameters() if name not in decayed}

    def redraw(self, step: int) -> None:
        """New random features in every layer, a function of (seed, step) alone."""
        for attend in self.attends():
            attend.redraw(step)
