"""Parallel transport with rotations of blocks of three."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.position.base import Sizes
from performer_string.position.block_rotation import block_diagonal
from performer_string.position.conformal import Form, Layout, Scaling
from performer_string.position.frequencies import mixed_frequencies
from performer_string.position.pate import PaTE, block_basis
from performer_string.utils.dtype import full_precision


def cross_product_matrix(u: Tensor) -> Tensor:
    """Return the matrix [u]_x of x -> u x x for vectors u [..., 3], [..., 3, 3]."""
    a, b, c = u.unbind(-1)
    zero = torch.zeros_like(a)
    return torch.stack([zero, -c, b, c, zero, -a, -b, a, zero], dim=-1).unflatten(-1, (3, 3))


class PaTESO3(PaTE):
    """RiemannFormer's SO(3): blocks of 3 rotate about a learned unit axis u, L_k = omega_k [u]_x.

    This is Rodrigues' formula. Two vectors orthogonal to u span the one plane of a block, and u itself stays fixed.
    Source: Ji, RiemannFormer, arXiv:2506.07405.

    Args:
        sizes: sizes of the attention that the encoding serves.
        layout: coordinates that set the angles: `axes`, or `raster` for the raster index of the training grid.
        learn_angles: whether the frequency of each block and axis is learned.
        base: base of the initial frequencies, which are those of RoPE-Mixed.
        conformal_scaling, slow_down, scaling, share_lambda, lambda_form, lambda_start: see `Scaling` in `conformal.py`.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: as `PaTE` raises.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        layout: Layout = "axes",
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
        super().__init__(sizes, share_heads, conformal, 3, layout)
        blocks = sizes.head_dim // 3
        omega = mixed_frequencies(self.parameter_heads, blocks, 1 if self.raster else sizes.coord_dim, base)
        self.omega = nn.Parameter(omega, requires_grad=learn_angles)
        self.axis = nn.Parameter(torch.randn(self.parameter_heads, blocks, 3))

    def frequencies(self) -> Tensor:
        """Return omega, [parameter_heads, C, d / 3], in radians per patch."""
        return self.along_raster(self.omega) if self.raster else self.omega

    def basis(self) -> Tensor:
        """Return the basis of planes orthogonal to u, and u, [parameter_heads, d, d]."""
        u = F.normalize(full_precision(self.axis), dim=-1)  # [H, m, 3]
        # The unit vector along the smallest coordinate of u is never parallel to u.
        not_parallel = F.one_hot(u.detach().abs().argmin(-1), 3).to(u.dtype)
        first = F.normalize(torch.linalg.cross(u, not_parallel), dim=-1)
        return block_basis([first, torch.linalg.cross(u, first), u])

    def generators(self) -> Tensor:
        """Return omega_k [u]_x block by block, [layers H, C, d, d]."""
        matrices = cross_product_matrix(F.normalize(self.axis, dim=-1))  # [H, m, 3, 3]
        blocks = self.omega[..., None, None] * matrices[:, None]  # [H, C or 1, m, 3, 3]
        if self.raster:
            blocks = blocks * self.strides.to(blocks)[:, None, None, None]
        return self.all_heads(block_diagonal(blocks))
