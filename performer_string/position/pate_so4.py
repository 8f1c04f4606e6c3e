"""Parallel transport with rotations of blocks of four, as quaternions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.position.base import Sizes
from performer_string.position.block_rotation import block_diagonal
from performer_string.position.conformal import Form, Layout, Scaling
from performer_string.position.frequencies import axial_frequencies
from performer_string.position.pate import PaTE, block_basis
from performer_string.utils.dtype import full_precision
from performer_string.utils.registry import choose

Factors = Literal["left", "both"]


def quaternion_left(u: Tensor) -> Tensor:
    """Return the matrix of q -> u q for imaginary quaternions u [..., 3], [..., 4, 4]."""
    a, b, c = u.unbind(-1)
    o = torch.zeros_like(a)
    rows = [o, -a, -b, -c, a, o, -c, b, b, c, o, -a, c, -b, a, o]
    return torch.stack(rows, dim=-1).unflatten(-1, (4, 4))


def quaternion_right(v: Tensor) -> Tensor:
    """Return the matrix of q -> q v for imaginary quaternions v [..., 3], [..., 4, 4]."""
    a, b, c = v.unbind(-1)
    o = torch.zeros_like(a)
    rows = [o, -a, -b, -c, a, o, c, -b, b, -c, o, a, c, b, -a, o]
    return torch.stack(rows, dim=-1).unflatten(-1, (4, 4))


class PaTESO4(PaTE):
    """RiemannFormer's SO(4): blocks of 4 as quaternions, R(x, y) q = exp(alpha x u) q exp(beta y v).

    Left and right multiplications commute, so that this is separable for any unit u and v. It rotates planes {q, u q}.
    The angle is alpha x + beta y where u q = q v, and alpha x - beta y where u q = -q v. Along one index i, of a
    sequence or of the raster, R(i) q = exp(alpha i u) q exp(beta i v). The right factor is there with `factors: both`.
    Source: Ji, RiemannFormer, arXiv:2506.07405, section 2.3.3.

    Args:
        sizes: sizes of the attention that the encoding serves, with positions of 1 or 2 dimensions, or any with the
            raster.
        layout: coordinates that set the angles: `axes`, or `raster` for the raster index of the training grid.
        factors: factors along one index: `left` or `both`. Along two axes there are always both.
        learn_angles: whether alpha and beta of each block are learned.
        base: base of the initial alpha and beta, base^(-m / M) for block m of M.
        conformal_scaling, slow_down, scaling, share_lambda, lambda_form, lambda_start: see `Scaling` in `conformal.py`.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: as `PaTE` raises, or positions of more than 2 dimensions.
    """

    without_effect: ClassVar = {**PaTE.without_effect, "factors": ("layout", ("axes",))}

    def __init__(
        self,
        sizes: Sizes,
        *,
        layout: Layout = "axes",
        factors: Factors = "left",
        learn_angles: bool = True,
        base: float = 10.0,
        conformal_scaling: float = 0.0,
        slow_down: float = 64.0,
        scaling: Layout = "raster",
        share_lambda: bool = False,
        lambda_form: Form = "bounded",
        lambda_start: float | None = None,
        share_heads: bool = False,
    ):
        conformal = Scaling(conformal_scaling, slow_down, scaling, share_lambda, lambda_form, lambda_start)
        super().__init__(sizes, share_heads, conformal, 4, layout)
        choose("factors of pate-so4", factors, Factors)
        self.one_index = self.raster or sizes.coord_dim == 1
        count = (2 if factors == "both" else 1) if self.one_index else sizes.coord_dim
        if count > 2:
            raise ValueError(
                f"pate-so4 has two commuting generators, so positions have 1 or 2 dimensions, not {sizes.coord_dim}. "
                f"The layout raster takes any."
            )
        blocks = sizes.head_dim // 4
        rates = axial_frequencies(blocks, 1, base).repeat(self.parameter_heads, count, 1)
        self.rates = nn.Parameter(rates, requires_grad=learn_angles)  # alpha and beta, [H, 1 or 2, M]
        self.axes = nn.Parameter(torch.randn(count, self.parameter_heads, blocks, 3))  # u and v

    @classmethod
    def unused_options(cls, options: Mapping[str, Any], coord_dim: int) -> dict[str, str]:
        """Return the options without an effect. `factors` has one for positions of one dimension, with any layout."""
        unused = super().unused_options(options, coord_dim)
        return {option: reason for option, reason in unused.items() if option != "factors" or coord_dim > 1}

    def frequencies(self) -> Tensor:
        """Return the frequencies of the planes with u q = q v and then u q = -q v, [parameter_heads, C, d / 2]."""
        alpha, *right = full_precision(self.rates).unbind(1)  # sums of angles are not rounded
        factors = torch.stack([torch.cat([alpha, alpha], -1), *(torch.cat([b, -b], -1) for b in right)], dim=1)
        if not self.one_index:
            return factors  # [H, 2, 2 M]
        omega = factors.sum(1, keepdim=True)  # [H, 1, 2 M]
        return self.along_raster(omega) if self.raster else omega

    def basis(self) -> Tensor:
        """Return the basis of the planes {q, u q}, [parameter_heads, d, d]."""
        axes = F.normalize(full_precision(self.axes), dim=-1)
        left, right = quaternion_left(axes[0]), quaternion_right(axes[-1])  # [H, M, 4, 4]
        eye, product = torch.eye(4, dtype=axes.dtype, device=axes.device), left @ right
        firsts = []
        for projector in ((eye - product) / 2, (eye + product) / 2):  # onto u q = q v, then onto u q = -q v
            longest = projector.detach().norm(dim=-2).argmax(-1)  # [H, M]
            column = projector.gather(-1, longest[..., None, None].expand(*longest.shape, 4, 1))[..., 0]
            firsts.append(F.normalize(column, dim=-1))
        seconds = [(left @ first[..., None])[..., 0] for first in firsts]
        return block_basis([*firsts, *seconds])

    def generators(self) -> Tensor:
        """Return alpha [u q] and beta [q v] block by block, [layers H, C, d, d]."""
        axes = F.normalize(full_precision(self.axes), dim=-1)
        matrices = [quaternion_left(axes[0]), quaternion_right(axes[-1])][: len(axes)]
        blocks = self.rates[..., None, None] * torch.stack(matrices, dim=1)  # [H, 1 or 2, M, 4, 4]
        if self.one_index:
            steps = self.strides.to(blocks) if self.raster else blocks.new_ones(1)
            blocks = blocks.sum(1, keepdim=True) * steps[:, None, None, None]  # [H, C, M, 4, 4]
        return self.all_heads(block_diagonal(blocks))
