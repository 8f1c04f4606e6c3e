"""Parallel transport encodings of RiemannFormer: rotations of blocks with conformal scaling.

Source: Ji, RiemannFormer, arXiv:2506.07405. T_i = s_i R_i maps the tangent space of token i to one for all tokens, so
that the transport from token j to token i is T_i^-1 T_j. The rotations R are in SO(2), SO(3) or SO(4) for each block of
the head width. s is the conformal exponential scaling, the root of the metric s_i^2 I = T_i^T T_i. The score of i and j
is the inner product of q_i and the transported k_j under the metric at i:

    q_i^T (T_i^T T_i) T_i^-1 T_j k_j = (T_i q_i) . (T_j k_j) = s_i s_j (R_i q_i) . (R_j k_j)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from performer_string.position.base import HeadWidthError, Sizes
from performer_string.position.rotation import Rotation, split_heads
from performer_string.position.separable import SeparableEncoding
from performer_string.utils.registry import choose
from performer_string.utils.validation import check_not_negative, check_positive

Layout = Literal["raster", "axes"]


def check_layout(layout: str) -> bool:
    """Return whether a layout is the raster.

    Raises:
        ValueError: an unknown layout.
    """
    return bool(choose("layout of pate", layout, Layout) == "raster")


class ScaledRotation:
    """Rotation with a scale for each token, T = s R. Scores depend on absolute positions by design.

    Args:
        rotation: R.
        scale: s, [..., 1 or H, N].
    """

    def __init__(self, rotation: Rotation, scale: Tensor):
        self.rotation, self.scale = rotation, scale

    def check(self, x: Tensor) -> None:
        """Raise a ValueError unless x [B, H, N, d] has the tokens and heads of this rotation."""
        self.rotation.check(x)

    def rotate(self, x: Tensor) -> Tensor:
        """Return s R x for x [B, H, N, d], up to an orthogonal factor on the left."""
        return (self.rotation.rotate(x) * self.scale[..., None]).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """Return s^-1 R^-1 x for x [B, H, N, d], the inverse of `rotate`."""
        return self.rotation.unrotate((x / self.scale[..., None]).to(x.dtype))

    def outer(self, x: Tensor) -> Tensor:
        """Return x multiplied by the factor that `rotate` leaves out."""
        return self.rotation.outer(x)

    def matrix(self) -> Tensor:
        """Return s R, [..., H, N, d, d]."""
        return self.rotation.matrix() * self.scale[..., None, None]

    def factor(self) -> tuple[Tensor | None, Rotation]:
        """Return (B, rest) with rotate(x) = rest.rotate(B^T x)."""
        basis, rest = self.rotation.factor()
        return basis, ScaledRotation(rest, self.scale)

    def split(self, count: int) -> list[Rotation]:
        """Return the rotations of `count` equal parts of the heads, in order."""
        parts = zip(self.rotation.split(count), split_heads(self.scale, count, -2), strict=True)
        return [ScaledRotation(rotation, scale) for rotation, scale in parts]

    def planar(self) -> tuple[Tensor, Tensor] | None:
        """Return None: this is no plain rotation of planes, and dimensions outside the planes are scaled as well."""
        return None


class PaTE(SeparableEncoding):
    """Parallel transport T_i = s_i R_i with s_i = lambda^(i / tau) and i the raster index of the token.

    log lambda is learned for each head and bounded, |log lambda| < conformal_scaling. Scores contain s_i s_j, so that
    they are not translation invariant with conformal scaling. With `scaling: axes`, s = prod_k lambda_k^(r_k / tau).

    Args:
        sizes: of the attention that the encoding serves.
        share_heads: one set of parameters per layer instead of one per head.
        conformal_scaling: bound of |log lambda|; 0 for no scaling, without the next three.
        slow_down: tau, in tokens.
        scaling: `raster`, or `axes` for a lambda of each axis and positions in place of the raster index.
        share_lambda: one lambda for all heads of all layers, as in the source (section 2.2), instead of one per head.
        block: size of the rotated blocks.
        raster: whether frequencies are per step of the raster index.

    Raises:
        ValueError: a head width that is no multiple of the block, or a value out of range. Also a raster index in two
            or more dimensions without the training grid.
    """

    without_effect: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = dict.fromkeys(
        ("slow_down", "scaling", "share_lambda"), ("conformal_scaling", (0,))
    )
    strides: Tensor

    def __init__(
        self,
        sizes: Sizes,
        share_heads: bool,
        conformal_scaling: float,
        slow_down: float,
        scaling: Layout,
        share_lambda: bool,
        block: int,
        raster: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        choose("scaling of pate", scaling, Layout)
        self.name = f"pate-so{block}"
        if sizes.head_dim % block:
            raise HeadWidthError(
                f"{self.name} rotates blocks of {block}, so the head width has to be divisible by {block}, not "
                f"{sizes.head_dim}."
            )
        check_not_negative(f"{self.name}: conformal_scaling", conformal_scaling)
        check_positive(f"{self.name}: slow_down", slow_down)
        self.bound, self.slow_down = conformal_scaling, slow_down
        self.scaling = scaling
        shape = (1 if share_lambda else self.parameter_heads, *((sizes.coord_dim,) if scaling == "axes" else ()))
        self.log_lambda = nn.Parameter(torch.full(shape, -0.5)) if conformal_scaling else None  # [H] or [H, C]
        self.raster = raster
        self.counts_patches = raster or (conformal_scaling > 0 and scaling == "raster")
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
        dtype = torch.promote_types(torch.promote_types(positions.dtype, self.log_lambda.dtype), torch.float32)
        log_lambda = self.bound * self.log_lambda.to(dtype).tanh()
        if self.scaling == "axes":
            r = positions.to(dtype)[..., None, :, :]  # [..., 1, N, C]
            exponent = (r * log_lambda[:, None]).sum(-1)  # [..., H, N]
        else:
            index = (positions.to(dtype) * self.strides.to(dtype)).sum(-1)  # [..., N]
            exponent = log_lambda[:, None] * index[..., None, :]
        return ScaledRotation(rotation, (exponent / self.slow_down).exp())

    def along_raster(self, omega: Tensor) -> Tensor:
        """Return frequencies per step of the raster index as those per patch: [heads, 1, P] to [heads, C, P]."""
        dtype = torch.promote_types(omega.dtype, torch.float32)  # a row's stride is large
        return omega.to(dtype) * self.strides.to(dtype)[:, None]


def block_basis(columns: Sequence[Tensor]) -> Tensor:
    """Return the basis of all blocks from the columns of each.

    Args:
        columns: k tensors [H, m, b], each with one column of each of the m blocks of size b.

    Returns:
        [H, d, d] with the columns in k groups of m.
    """
    heads, m, b = columns[0].shape
    eye = torch.eye(m, dtype=columns[0].dtype, device=columns[0].device)
    groups = [torch.einsum("hmb,mn->hmbn", column, eye).reshape(heads, m * b, m) for column in columns]
    return torch.cat(groups, dim=-1)
