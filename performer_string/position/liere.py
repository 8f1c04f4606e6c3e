"""LieRE: the exponential of a learned combination of generators that need not commute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from performer_string.position.base import Encoding, Sizes, block_of
from performer_string.position.exponential import exponentials
from performer_string.position.rotation import BlockRotation, Rotation, block_diagonal
from performer_string.utils.dtype import full_precision


class LieRE(Encoding):
    """R(r) = exp(sum_k r_k A_k), A_k skew-symmetric in blocks of b, for each token in full.

    Generators of b > 2 along two or more axes do not commute, so that scores are not translation invariant; b = 2 is
    RoPE-Mixed. The exponential is in float32 or better, once a forward pass and not once an image; a model keeps it in
    evaluation.

    Source: Ostmeier et al., arXiv:2406.10322, section 4. The initial scale is a choice of this project; table 7 there
    compares 2 pi and 1.

    Args:
        block_size: b, from 2 to d, a divisor of d; the whole width unless given.
        init_scale: entries of A start with standard deviation init_scale / sqrt(b), hence turns of about twice
            init_scale radians a patch at most.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        block_size: int | None = None,
        init_scale: float = 0.5,
        share_heads: bool = False,
    ):
        super().__init__(sizes)
        b = block_of("liere", sizes.head_dim, block_size, 2)
        self.block_size = b
        shape = (sizes.parameter_heads(share_heads), sizes.coord_dim, sizes.head_dim // b, b * (b - 1) // 2)
        self.entries = nn.Parameter(torch.randn(shape) * init_scale / b**0.5)

    def skew(self) -> Tensor:
        """A by blocks, [1 or H, C, d / b, b, b], in float32 or better."""
        b = self.block_size
        upper = self.entries.new_zeros(*self.entries.shape[:-1], b, b)
        rows, columns = torch.triu_indices(b, b, offset=1, device=upper.device)
        upper[..., rows, columns] = self.entries
        return full_precision(upper - upper.mT)

    def forward(self, positions: Tensor) -> Rotation:
        self.check(positions)
        skew = self.skew()
        dtype = torch.promote_types(positions.dtype, skew.dtype)
        rows = positions.to(dtype).flatten(0, -2)  # [.. N, C]
        blocks = exponentials(rows, skew.to(dtype)).unflatten(1, positions.shape[:-1])  # [H, ..., N, d / b, b, b]
        return BlockRotation(blocks.movedim(0, -5))

    def generators(self) -> Tensor:
        return self.all_heads(block_diagonal(self.skew()))
