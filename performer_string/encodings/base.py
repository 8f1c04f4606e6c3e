"""The contract of every position encoding, and the form that all separable ones share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from performer_string.rotation import PlaneRotation, Rotation


class Encoding(nn.Module):
    """Sends positions [..., N, C] to the rotation of each head's queries and keys.

    Args:
        head_dim: width d of a head.
        num_heads: H.
        coord_dim: dimension C of the positions.
        grid: cells of the training grid along each axis, for encodings that depend on it.
    """

    additive = False  # adds to the tokens at the entry of the model; one instance serves all layers
    extrapolates = True  # has a meaning outside the training grid; otherwise positions are squeezed into it

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int = 2, grid: Sequence[int] | None = None):
        super().__init__()
        for name, value in (("head_dim", head_dim), ("num_heads", num_heads), ("coord_dim", coord_dim)):
            if value < 1:
                raise ValueError(f"{name} has to be positive, not {value}.")
        if grid is not None and len(grid) != coord_dim:
            raise ValueError(f"the training grid {tuple(grid)} does not have coord_dim={coord_dim} axes.")
        self.head_dim, self.num_heads, self.coord_dim = head_dim, num_heads, coord_dim
        self.grid = None if grid is None else tuple(grid)

    def check(self, positions: Tensor) -> Tensor:
        if positions.ndim < 2 or positions.shape[-1] != self.coord_dim:
            raise ValueError(
                f"{type(self).__name__} was built for positions [..., N, {self.coord_dim}] (coord_dim="
                f"{self.coord_dim}), but was given {list(positions.shape)}. Build it with another coord_dim, or pass "
                f"positions with one column an axis."
            )
        return positions

    def forward(self, positions: Tensor) -> Rotation:
        """The rotation at `positions` [..., N, C]; the identity unless the encoding says otherwise."""
        angles = self.check(positions).new_zeros(*positions.shape[:-2], 1, positions.shape[-2], 0)
        return PlaneRotation(angles, self.head_dim)

    def embedding(self, positions: Tensor) -> Tensor | None:
        """What is added to the tokens at the entry of the model, [..., N, H d], or None."""
        self.check(positions)
        return None

    def generators(self) -> Tensor:
        """L_k with R(r) = exp(sum_k r_k L_k), [H, C, d, d], built from their definition and not from B and Omega."""
        return torch.zeros(self.num_heads, self.coord_dim, self.head_dim, self.head_dim)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, coord_dim={self.coord_dim}"


class SeparableEncoding(Encoding):
    """R(r) = B Rot(Omega r) B^T, the form of every STRING encoding (arXiv:2502.02562, Theorem 3.2).

    A family gives its plane frequencies Omega and, where it has one, its basis B.
    """

    share_heads: bool
    folded = False  # the basis is in the projections already, and the rotation comes without it

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        coord_dim: int = 2,
        grid: Sequence[int] | None = None,
        *,
        share_heads: bool = False,
    ):
        super().__init__(head_dim, num_heads, coord_dim, grid)
        self.share_heads = share_heads
        self.own_heads = 1 if share_heads else num_heads  # how many heads have parameters of their own

    def frequencies(self) -> Tensor:
        """Omega, [1 or H, C, P], in radians for each patch."""
        raise NotImplementedError

    def basis(self) -> Tensor | None:
        """B, orthogonal, [1 or H, d, d]; None for the identity."""
        return None

    def forward(self, positions: Tensor) -> Rotation:
        self.check(positions)
        omega = self.frequencies()
        dtype = torch.promote_types(torch.promote_types(positions.dtype, omega.dtype), torch.float32)
        r, omega = (
            positions.to(dtype)[..., None, :, :, None],
            omega.to(dtype)[:, None],
        )  # [.., 1, N, C, 1], [H, 1, C, P]
        # A sum of products and not a matrix product: autocast would take that one to bf16, where 23 patches are
        # off by a quarter of a radian at unit frequency.
        angles = sum(
            (r[..., c, :] * omega[..., c, :] for c in range(1, self.coord_dim)), r[..., 0, :] * omega[..., 0, :]
        )
        return PlaneRotation(angles, self.head_dim, None if self.folded else self.basis())  # angles [..., H, N, P]

    def all_heads(self, x: Tensor) -> Tensor:
        """[1 or H, ...] -> [H, ...]."""
        return x.expand(self.num_heads, *x.shape[1:])
