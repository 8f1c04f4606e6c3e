"""Rotations by their matrices, block by block, for generators that do not commute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.position.rotation import Rotation, check_rotation_input, one_sample, split_heads
from performer_string.utils.dtype import without_autocast


def block_diagonal(blocks: Tensor) -> Tensor:
    """Return diag(R_1, .., R_m) of blocks [..., m, b, b], [..., m b, m b]."""
    full = torch.diag_embed(blocks.movedim(-3, -1), dim1=-4, dim2=-2)
    return full.flatten(-2).flatten(-3, -2)  # [..., m, b, m, b] -> [..., m b, m b]


class BlockRotation(Rotation):
    """Rotation R = diag(R_1, .., R_m) by its matrices, for encodings whose generators do not commute.

    Args:
        blocks: the b x b blocks along the diagonal, [..., 1 or H, N, m, b, b], in float32 or better.

    Raises:
        ValueError: blocks in 16 bits, as autocast returns them.
    """

    def __init__(self, blocks: Tensor):
        if blocks.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"the blocks of a rotation are in {blocks.dtype}, in which they are not orthogonal: compute them from "
                f"full_precision(parameter), within without_autocast(positions), of performer_string.utils.dtype."
            )
        self.blocks = blocks

    def check(self, x: Tensor) -> None:
        *leading, num_positions, blocks, size, _ = self.blocks.shape
        remedy = f", and give it blocks that cover this width: these are {blocks} of {size} x {size}"
        check_rotation_input(x, leading, num_positions, blocks * size, self.blocks.device, remedy)

    def rotate(self, x: Tensor) -> Tensor:
        """Return R x for x [B, H, N, d], computed in the precision of the blocks, in the type of x."""
        self.check(x)
        dtype = torch.promote_types(x.dtype, self.blocks.dtype)
        parts = x.to(dtype).unflatten(-1, self.blocks.shape[-3:-1])  # [B, H, N, m, b]
        with without_autocast(x):
            # Not `@`, which would repeat the blocks for each image.
            rotated = torch.einsum("...hnmij,...hnmj->...hnmi", self.blocks.to(dtype), parts)
        return rotated.flatten(-2).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """Return R^T x for x [B, H, N, d]."""
        return BlockRotation(self.blocks.mT).rotate(x)

    def matrix(self) -> Tensor:
        """Return R, [..., H, N, d, d]."""
        return block_diagonal(self.blocks)

    def split(self, count: int) -> Sequence[Rotation]:
        return [BlockRotation(blocks) for blocks in split_heads(self.blocks, count, -5)]

    def of_sample(self, index: int) -> Rotation:
        return BlockRotation(one_sample(self.blocks, index, 5))
