"""Positions of the tokens of an image, prefix tokens first, the rotations there, and which tokens take part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.models.config import ViTConfig, patch_grid
from performer_string.models.vit.patches import blank_patches
from performer_string.ops.layout import TokenLayout, make_grid
from performer_string.position import Encoding
from performer_string.position.additive import Absolute
from performer_string.position.grid import (
    PositionMode,
    as_floating,
    grid_positions,
    grid_steps,
    mean_position,
    with_prefix,
)
from performer_string.position.rotation import Rotation


class TokenPositions:
    """Mixin of a model: positions of its tokens, the rotations there, and which tokens take part.

    Attributes:
        patch: sizes of a patch in pixels.
        train_grid: number of patches along each axis of a training image.
        num_prefix: number of prefix tokens: class token and registers.
        absolute: learned table beside the encoding, or None.
    """

    config: ViTConfig
    patch: tuple[int, ...]
    train_grid: tuple[int, ...]
    num_prefix: int
    encoding: Encoding
    absolute: Absolute | None
    blocks: nn.ModuleList
    norm: nn.LayerNorm

    def grid(self, *sizes: int) -> tuple[int, ...]:
        """Return the patches along each axis of an image of these sizes in pixels: height and width."""
        return patch_grid(sizes, self.patch)

    def position_mode(self) -> tuple[PositionMode, tuple[int, ...] | None]:
        """Return the position mode, and the training grid for the mode `interpolate`, None for others."""
        # Encodings that do not extrapolate have positions of the training grid only.
        mode: PositionMode = self.config.positions if self.encoding.extrapolates else "interpolate"
        return mode, self.train_grid if mode == "interpolate" else None

    def is_centred(self) -> bool:
        """Return whether positions are relative to their mean."""
        return self.config.centred and self.encoding.extrapolates

    def grid_positions(self, grid: Sequence[int], device: torch.device | None = None) -> Tensor:
        """Return the positions of the patches of a grid, [N, C], in float32, or float64 in a model of that type."""
        mode, train_grid = self.position_mode()
        dtype = torch.promote_types(self.norm.weight.dtype, torch.float32)
        centred = self.is_centred()
        return grid_positions(grid, mode=mode, train_grid=train_grid, centred=centred, device=device, dtype=dtype)

    def table_shares_positions(self) -> bool:
        """Return whether a patch has the same position in the encoding and in the table beside it, at every size."""
        return self.position_mode()[0] == "interpolate" and not self.is_centred()

    def table_positions(self, grid: Sequence[int], positions: Tensor | None = None) -> Tensor | None:
        """Return the positions of patches in the table beside the encoding, [N, C] or [B, N, C]; None without one.

        Args:
            grid: number of patches along each axis.
            positions: positions of the patches in the encoding; None for those of the grid.
        """
        if self.absolute is None:
            return None
        if positions is not None and self.table_shares_positions():
            return positions
        dtype, device = torch.promote_types(self.norm.weight.dtype, torch.float32), self.norm.weight.device
        return grid_positions(grid, mode="interpolate", train_grid=self.train_grid, device=device, dtype=dtype)

    def participating(self, images: Tensor, patch_mask: Tensor | None = None) -> Tensor | None:
        """Return the mask of the patches that are keys and are pooled, [B, N]; None for all.

        With `mask_blank_patches` it is `patch_mask`, if any, without the blank patches of the images.
        """
        if not self.config.mask_blank_patches:
            return patch_mask
        drawn = ~blank_patches(images, self.patch)
        return drawn if patch_mask is None else drawn & patch_mask

    def layout(
        self, grid: tuple[int, ...], positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> TokenLayout:
        """Return the layout of the tokens, prefix tokens first.

        Args:
            grid: number of patches along each axis.
            positions: positions of the patches, [N, C] or [B, N, C]; those of the grid by default.
            patch_mask: mask of the patches, [B, N], True for patches to attend to.
        """
        image_grid, centre = make_grid(grid, grid_steps(grid, *self.position_mode())), None
        regular = image_grid if positions is None else None
        if positions is None:
            positions = self.grid_positions(grid, self.norm.weight.device)
        if self.is_centred() and (regular is None or patch_mask is not None):
            positions = as_floating(positions)
            centre = mean_position(positions, patch_mask)  # [1, C], or [B, 1, C]
            if centre.ndim == positions.ndim:  # one centre for each set of positions
                positions, centre = positions - centre, None
        mask = None if patch_mask is None else F.pad(patch_mask, (self.num_prefix, 0), value=True)
        positions = with_prefix(positions, self.num_prefix)
        return TokenLayout(positions, regular, self.num_prefix, mask, centre, image_grid=image_grid)

    def rotations(self, layout: TokenLayout) -> list[Rotation | None]:
        """Return the rotation of each layer, None if the encoding is additive; prefix tokens are at the origin."""
        if self.encoding.additive:
            return [None] * len(self.blocks)
        positions = self.in_units(layout.centred_positions())
        if self.config.position_unit == "raster" and self.num_prefix:  # patches count from 1
            lengths = layout.lengths or (positions.shape[-2],)
            index = torch.cat([torch.arange(length, device=positions.device) for length in lengths])
            positions = positions.masked_fill((index < self.num_prefix)[:, None], 0)
        rotations: list[Rotation | None] = [*self.encoding.by_layer(positions)]
        return (rotations * len(self.blocks) if len(rotations) == 1 else rotations)[: len(self.blocks)]

    def in_units(self, positions: Tensor) -> Tensor:
        """Return positions [..., N, C] of patches in the unit of the encoding, [..., N, 1] for `raster`."""
        if self.config.position_unit == "patch":
            return positions
        positions = as_floating(positions)  # integers would round the unit, and short ones wrap around
        if self.config.position_unit == "raster":
            strides = [math.prod(self.train_grid[c + 1 :]) for c in range(len(self.train_grid))]
            index = (positions * positions.new_tensor(strides)).sum(-1, keepdim=True)
            return index + (self.num_prefix > 0)
        units = 2 if self.config.position_unit == "half-image" else 1  # length of a training image
        return positions / positions.new_tensor([max(1, cells - 1) / units for cells in self.train_grid])
