"""Parallel transport encodings of RiemannFormer: rotations of blocks with conformal scaling.

Source: Ji, RiemannFormer, arXiv:2506.07405. T_i = s_i R_i maps the tangent space of token i to one for all tokens, so
that the transport from token j to token i is T_i^-1 T_j. The rotations R are in SO(2), SO(3) or SO(4) for each block of
the head width. s is the conformal exponential scaling, the root of the metric s_i^2 I = T_i^T T_i. The score of i and j
is the inner product of q_i and the transported k_j under the metric at i:

    q_i^T (T_i^T T_i) T_i^-1 T_j k_j = (T_i q_i) . (T_j k_j) = s_i s_j (R_i q_i) . (R_j k_j)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from performer_string.position.base import HeadWidthError, Sizes
from performer_string.position.conformal import Layout, ScaledRotation, Scaling
from performer_string.position.rotation import Rotation
from performer_string.position.separable import SeparableEncoding
from performer_string.utils.registry import choose


class PaTE(SeparableEncoding):
    """Parallel transport T_i = s_i R_i with s_i = lambda^(i / tau) and i the raster index of the token.

    lambda is learned for each head. Scores contain s_i s_j, so that they are not translation invariant with conformal
    scaling. With `scaling: axes`, s = prod_k lambda_k^(r_k / tau).

    Args:
        sizes: sizes of the attention that the encoding serves.
        share_heads: whether the heads of a layer share one set of parameters.
        scaling: options of conformal scaling.
        block: size of the rotated blocks.
        layout: coordinates that set the angles: `axes`, or `raster` for frequencies per step of the raster index.
        eigenvalues: number of eigenvalues of the metric, each with its own lambda; None for one lambda.

    Raises:
        ValueError: a head width that is no multiple of the block, an unknown layout, or a value out of range. Also a
            raster index in two or more dimensions without the training grid.
    """

    without_effect: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = dict.fromkeys(
        ("slow_down", "scaling", "share_lambda", "lambda_form", "lambda_start"), ("conformal_scaling", (0,))
    )
    strides: Tensor

    def __init__(
        self,
        sizes: Sizes,
        share_heads: bool,
        scaling: Scaling,
        block: int,
        layout: Layout,
        eigenvalues: int | None = None,
    ):
        super().__init__(sizes, share_heads=share_heads)
        self.name = f"pate-so{block}"
        if sizes.head_dim % block:
            raise HeadWidthError(
                f"{self.name} rotates blocks of {block}, so the head width must be divisible by {block}, not "
                f"{sizes.head_dim}."
            )
        scaling.check(self.name)
        self.scaling, self.raster = scaling, choose("layout of pate", layout, Layout) == "raster"
        shape = [1 if scaling.shared else self.parameter_heads]  # [H], [H, C], or with eigenvalues [H, d] or [H, d, C]
        shape += [] if eigenvalues is None else [eigenvalues]
        shape += [sizes.coord_dim] if scaling.layout == "axes" else []
        self.log_lambda = nn.Parameter(torch.full(shape, scaling.first_weight())) if scaling.bound else None  # w
        self.counts_patches = self.raster or (scaling.bound > 0 and scaling.layout == "raster")
        self.register_computed_buffers()

    def computed_buffers(self) -> dict[str, Tensor]:
        """Return the strides [C] of the raster index strides . r, (W, 1) for a grid of width W, where it is needed."""
        if not self.counts_patches:
            return {}
        if self.coord_dim > 1 and self.grid is None:
            raise ValueError(f"{self.name}: a raster index needs the training grid, for example grid=(14, 14).")
        sizes = torch.tensor([*(self.grid or (1,))[1:], 1], dtype=torch.float64)
        return {"strides": sizes.flip(0).cumprod(0).flip(0)}

    def forward(self, positions: Tensor) -> Rotation:
        """Return the scaled rotation at positions [..., N, C], in patches of the training grid."""
        rotation = super().forward(positions)
        if self.log_lambda is None:
            return rotation
        return self.scaled(rotation, self.exponents(positions, self.log_lambda))

    def scaled(self, rotation: Rotation, exponents: Tensor) -> Rotation:
        """Return a rotation with the scales exp(exponents), [..., H, N]."""
        return ScaledRotation(rotation, exponents.exp())

    def exponents(self, positions: Tensor, w: Tensor) -> Tensor:
        """Return log lambda i / tau, or its sum over the axes, for w [H] or [H, C]: [..., H, N]."""
        dtype = torch.promote_types(torch.promote_types(positions.dtype, w.dtype), torch.float32)
        log_lambda = self.scaling.log_lambda(w.to(dtype))
        if self.scaling.layout == "axes":
            r = positions.to(dtype)[..., None, :, :]  # [..., 1, N, C]
            exponents = (r * log_lambda[:, None]).sum(-1)  # [..., H, N]
        else:
            index = (positions.to(dtype) * self.strides.to(dtype)).sum(-1)  # [..., N]
            exponents = log_lambda[:, None] * index[..., None, :]
        return exponents / self.scaling.slow_down

    def along_raster(self, omega: Tensor) -> Tensor:
        """Convert frequencies per step of the raster index to those per patch: [heads, 1, P] -> [heads, C, P]."""
        dtype = torch.promote_types(omega.dtype, torch.float32)  # a row's stride is large
        return omega.to(dtype) * self.strides.to(dtype)[:, None]


def block_basis(columns: Sequence[Tensor]) -> Tensor:
    """Return the basis of all blocks from the columns of each.

    Args:
        columns: columns of the blocks: k tensors [H, m, b], each with one column of each of the m blocks of size b.

    Returns:
        Basis, [H, d, d] with the columns in k groups of m.
    """
    heads, m, b = columns[0].shape
    eye = torch.eye(m, dtype=columns[0].dtype, device=columns[0].device)
    groups = [torch.einsum("hmb,mn->hmbn", column, eye).reshape(heads, m * b, m) for column in columns]
    return torch.cat(groups, dim=-1)
