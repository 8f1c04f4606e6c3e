"""RiemannFormer's parallel transport encodings: rotations in 2, 3 and 4 dimensions, with conformal scaling.

Source: Ji, RiemannFormer, arXiv:2506.07405. Transport from token j to token i is T_i T_j^-1 with T_i = s_i R_i; the
rotations R are in SO(2), SO(3) or SO(4) for each block of the width, and s is the conformal exponential scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.position.base import HeadWidthError, SeparableEncoding, Sizes
from performer_string.position.frequencies import axial_frequencies, mixed_frequencies, plane_generators, planes_of
from performer_string.position.rotation import MetricRotation, Rotation, block_diagonal, parts_of
from performer_string.utils.dtype import full_precision

Layout = Literal["raster", "axes"]


class ScaledRotation:
    """T = s R: a rotation of each token, scaled; absolute by design.

    Args:
        rotation: R.
        scale: s, [..., 1 or H, N].
    """

    def __init__(self, rotation: Rotation, scale: Tensor):
        self.rotation, self.scale = rotation, scale

    def check(self, x: Tensor) -> None:
        self.rotation.check(x)

    def rotate(self, x: Tensor) -> Tensor:
        return (self.rotation.rotate(x) * self.scale[..., None]).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """s^-1 R^-1 x."""
        return self.rotation.unrotate((x / self.scale[..., None]).to(x.dtype))

    def outer(self, x: Tensor) -> Tensor:
        return self.rotation.outer(x)

    def matrix(self) -> Tensor:
        return self.rotation.matrix() * self.scale[..., None, None]

    def factor(self) -> tuple[Tensor | None, Rotation]:
        basis, rest = self.rotation.factor()
        return basis, ScaledRotation(rest, self.scale)

    def split(self, count: int) -> list[Rotation]:
        parts = zip(self.rotation.split(count), parts_of(self.scale, count, -2), strict=True)
        return [ScaledRotation(rotation, scale) for rotation, scale in parts]

    def planar(self) -> tuple[Tensor, Tensor] | None:
        return None  # dimensions outside the planes are scaled as well


class PaTE(SeparableEncoding):
    """T_i = s_i R_i, with s_i = lambda^(i / tau) and i the raster index of the token.

    log lambda is learned for each head and bounded: |log lambda| < conformal_scaling. The scaling is absolute: scores
    carry s_i s_j, so that a common move shows.

    Args:
        conformal_scaling: the bound of |log lambda|; 0 for no scaling.
        slow_down: tau, in tokens.
    """

    strides: Tensor

    def __init__(
        self,
        sizes: Sizes,
        share_heads: bool,
        conformal_scaling: float,
        slow_down: float,
        block: int,
        raster: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        self.name = f"pate-so{block}"
        if sizes.head_dim % block:
            raise HeadWidthError(
                f"{self.name} turns blocks of {block}, so the head width has to be divisible, not {sizes.head_dim}."
            )
        if not (conformal_scaling >= 0 and slow_down > 0):
            raise ValueError(
                f"{self.name}: conformal_scaling has to be 0 or more and slow_down positive, not {conformal_scaling} "
                f"and {slow_down}."
            )
        self.bound, self.slow_down = conformal_scaling, slow_down
        self.log_lambda = nn.Parameter(torch.full((self.parameter_heads,), -0.5)) if conformal_scaling else None
        self.raster = raster
        self.register_computed_buffers()

    def computed_buffers(self) -> dict[str, Tensor]:
        """strides, with raster index = strides . r: (W, 1) for a grid of width W, [C]; only where one is needed."""
        if not self.raster and self.log_lambda is None:
            return {}
        if self.coord_dim > 1 and self.grid is None:
            raise ValueError(f"{self.name}: a raster index needs the training grid, for example grid=(14, 14).")
        later = torch.tensor([*(self.grid or (1,))[1:], 1], dtype=torch.float64)
        return {"strides": later.flip(0).cumprod(0).flip(0)}

    def forward(self, positions: Tensor) -> Rotation:
        rotation = super().forward(positions)
        if self.log_lambda is None:
            return rotation
        dtype = torch.promote_types(torch.promote_types(positions.dtype, self.log_lambda.dtype), torch.float32)
        index = (positions.to(dtype) * self.strides.to(dtype)).sum(-1)  # [..., N]
        log_lambda = self.bound * self.log_lambda.to(dtype).tanh()  # [H]
        return ScaledRotation(rotation, (log_lambda[:, None] * index[..., None, :] / self.slow_down).exp())


class PaTESO2(PaTE):
    """Planes that turn by omega_p i with the raster index i, or with one axis each.

    Both are separable: the raster index is linear in the coordinates, hence Omega = omega (W, 1).

    Args:
        layout: `raster` (as in the paper's table 1) or `axes`. The raster's stride is the width of the training grid,
            so that on a wider one the end of a row lies on the beginning of the next: `axes` for larger images.
        learn_angles: whether omega is learned, for each head.
        base: omega_p = base^(-p / P) at the start; with `axes` P is the number of planes of an axis.
        metric: learn a 2 x 2 metric M = L L^T of each plane, which the rotations keep (the paper's appendix); it
            starts as the Euclidean one. L^T is absorbed by W_Q and W_K, so that under exact attention this is no
            new class of functions.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        layout: Layout = "raster",
        learn_angles: bool = True,
        base: float = 10000.0,
        metric: bool = False,
        conformal_scaling: float = 0.0,
        slow_down: float = 64.0,
        share_heads: bool = False,
    ):
        if layout not in get_args(Layout):
            raise ValueError(f"layout has to be one of {', '.join(get_args(Layout))}, not {layout!r}.")
        super().__init__(sizes, share_heads, conformal_scaling, slow_down, 2, raster=layout == "raster")
        planes = planes_of(sizes.head_dim, self.name)
        omega = axial_frequencies(planes, 1 if self.raster else sizes.coord_dim, base).repeat(self.parameter_heads, 1, 1)
        self.omega = nn.Parameter(omega, requires_grad=learn_angles)
        # log L_11, L_21 and log L_22 of each plane
        self.root = nn.Parameter(torch.zeros(self.parameter_heads, planes, 3)) if metric else None
        if metric:
            self.rotation = MetricRotation

    def basis(self) -> Tensor | None:
        """L, lower triangular in each plane, [H, d, d]; None without a metric."""
        if self.root is None:
            return None
        first, below, second = full_precision(self.root).unbind(-1)  # [H, P]
        diagonal = torch.diag_embed(torch.cat([first.exp(), second.exp()], dim=-1))  # [H, 2 P, 2 P]
        return diagonal + torch.diag_embed(below, offset=-below.shape[-1])  # row p + P, column p

    def frequencies(self) -> Tensor:
        if not self.raster:
            return self.omega  # [H, C, P]
        dtype = torch.promote_types(self.omega.dtype, torch.float32)  # a row's stride is large
        return self.omega.to(dtype) * self.strides.to(dtype)[:, None]  # [H, 1, P] [C, 1]

    def generators(self) -> Tensor:
        turns, root = self.all_heads(plane_generators(self.frequencies(), self.head_dim)), self.basis()
        if root is None:
            return turns
        root = self.all_heads(root)[:, None].to(turns.dtype)  # L; T = exp(sum_k r_k L^-T G_k L^T)
        with torch.autocast(turns.device.type, enabled=False):
            return torch.linalg.solve_triangular(root.mT, turns @ root.mT, upper=True).contiguous()


def cross(u: Tensor) -> Tensor:
    """The matrix of x -> u x x: [..., 3] -> [..., 3, 3]."""
    a, b, c = u.unbind(-1)
    zero = torch.zeros_like(a)
    return torch.stack([zero, -c, b, c, zero, -a, -b, a, zero], dim=-1).unflatten(-1, (3, 3))


def block_basis(columns: Sequence[Tensor]) -> Tensor:
    """Orthogonal [H, d, d] whose columns are those of each block: k tensors [H, m, b] give columns in k groups of m."""
    heads, m, b = columns[0].shape
    eye = torch.eye(m, dtype=columns[0].dtype, device=columns[0].device)
    groups = [torch.einsum("hmb,mn->hmbn", column, eye).reshape(heads, m * b, m) for column in columns]
    return torch.cat(groups, dim=-1)


class PaTESO3(PaTE):
    """Blocks of 3 that turn about a learned unit axis (Rodrigues' formula): L_k = omega_k [u]_x.

    In the basis of two vectors across u and u itself this is one plane and one direction that stays.

    Args:
        learn_angles: whether the frequency of each block and axis is learned.
        base: they start as those of RoPE-Mixed.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        learn_angles: bool = True,
        base: float = 10.0,
        conformal_scaling: float = 0.0,
        slow_down: float = 64.0,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads, conformal_scaling, slow_down, 3)
        omega = mixed_frequencies(self.parameter_heads, sizes.head_dim // 3, sizes.coord_dim, base)
        self.omega = nn.Parameter(omega, requires_grad=learn_angles)
        self.axis = nn.Parameter(torch.randn(self.parameter_heads, sizes.head_dim // 3, 3))

    def frequencies(self) -> Tensor:
        return self.omega

    def basis(self) -> Tensor:
        u = F.normalize(full_precision(self.axis), dim=-1)  # [H, m, 3]
        aside = F.one_hot(u.detach().abs().argmin(-1), 3).to(u.dtype)  # never along u
        first = F.normalize(torch.linalg.cross(u, aside), dim=-1)
        return block_basis([first, torch.linalg.cross(u, first), u])

    def generators(self) -> Tensor:
        turns = cross(F.normalize(self.axis, dim=-1))  # [H, m, 3, 3]
        blocks = self.omega[..., None, None] * turns[:, None]  # [H, C, m, 3, 3]
        return self.all_heads(block_diagonal(blocks))
