"""LieRE: the exponential of a learned combination of generators that need not commute."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from performer_string.position.base import Encoding, Sizes, resolve_block_size
from performer_string.position.block_rotation import BlockRotation, block_diagonal
from performer_string.position.matrix_exponential import chunked_exponential_of_combination
from performer_string.position.rotation import Rotation
from performer_string.utils.dtype import angle_dtype, full_precision
from performer_string.utils.registry import choose
from performer_string.utils.validation import check_not_negative

Start = Literal["normal", "uniform"]


class LieRE(Encoding):
    """LieRE, R(r) = exp(sum_k r_k A_k) with A_k skew-symmetric in blocks of size b.

    Generators with b > 2 along two or more axes do not commute, so that scores are not translation invariant. With
    blocks of 2 the encoding is RoPE-Mixed. The exponential is in float32 or better, computed once per forward pass and
    not once per image. `ViT.cached()` keeps it for all forward passes within.

    Source: Ostmeier et al., arXiv:2406.10322, section 4. The initial scale is a choice of this project; table 7 there
    compares 2 pi and 1.

    Args:
        sizes: sizes of the attention that the encoding serves.
        block_size: size b of a block, from 2 to d, a divisor of d; d by default.
        start: distribution of the initial entries of A: `normal`, or `uniform` as in LieRE (appendix C, with an
            init_scale of 2 pi and, in its code, the unit of positions `image`).
        init_scale: scale of the initial entries of A, whose standard deviation is init_scale / sqrt(b). The largest
            initial frequency is then about twice init_scale, in radians per patch. With `uniform` the entries lie
            between 0 and init_scale.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: a block size that does not fit, or an init_scale below 0.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        block_size: int | None = None,
        start: Start = "normal",
        init_scale: float = 0.5,
        share_heads: bool = False,
    ):
        super().__init__(sizes)
        check_not_negative("init_scale of liere", init_scale)
        b = resolve_block_size("liere", sizes.head_dim, block_size, 2)
        self.block_size = b
        shape = (sizes.parameter_heads(share_heads), sizes.coord_dim, sizes.head_dim // b, b * (b - 1) // 2)
        choose("start of liere", start, Start)
        uniform = start == "uniform"
        self.entries = nn.Parameter(init_scale * (torch.rand(shape) if uniform else torch.randn(shape) / b**0.5))

    def skew(self) -> Tensor:
        """Return the blocks of A, [parameter heads, C, d / b, b, b], in float32 or better."""
        b = self.block_size
        upper = self.entries.new_zeros(*self.entries.shape[:-1], b, b)
        rows, columns = torch.triu_indices(b, b, offset=1, device=upper.device)
        upper[..., rows, columns] = self.entries
        return full_precision(upper - upper.mT)

    def forward(self, positions: Tensor) -> Rotation:
        """Return the rotation at positions [..., N, C], in patches."""
        self.check(positions)
        skew = self.skew()
        exact = positions.dtype if positions.is_floating_point() else angle_dtype(positions)
        dtype = torch.promote_types(exact, skew.dtype)
        rows = positions.to(dtype).flatten(0, -2)  # [.. N, C]
        blocks = chunked_exponential_of_combination(rows, skew.to(dtype))  # [H, .. N, d / b, b, b]
        blocks = self.tell_layers_apart(blocks, 0)
        return BlockRotation(blocks.unflatten(1, positions.shape[:-1]).movedim(0, -5))

    def generators(self) -> Tensor:
        """Return A, [layers H, C, d, d]."""
        return self.all_heads(block_diagonal(self.skew()))
