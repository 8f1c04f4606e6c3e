"""What an encoding hands to attention: rotations of queries and keys, one for each token and head.

Every separable encoding has the form

    R(r) = B Rot(theta(r)) B^T,    theta(r) = Omega r

with an orthogonal basis B and plane angles theta, since commuting skew-symmetric generators share one orthogonal
basis in which each is a set of plane rotations. The left B cancels in q^T R(r_i)^T R(r_j) k, so attention uses the
gauge Rot(theta) B^T, and B^T folds into the projections of queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from performer_string.ops.rotary import apply_rotary


class Rotation(Protocol):
    """What attention asks of a position encoding, once it has seen the positions."""

    def check(self, x: Tensor) -> None:
        """An error unless x [B, H, N, d] has a place for each token and the heads that this is for."""
        ...

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys [B, H, N, d] turned by their positions, in any gauge that keeps every inner product."""
        ...

    def unrotate(self, x: Tensor) -> Tensor:
        """The inverse of `rotate`, in the same gauge: unrotate at r_i after rotate at r_j is R(r_i)^-1 R(r_j)."""
        ...

    def outer(self, x: Tensor) -> Tensor:
        """The factor on the left of R, alike for all tokens, which `rotate` leaves out: outer(rotate(x)) is R x."""
        ...

    def matrix(self) -> Tensor:
        """R(r) itself, [..., H, N, d, d]; under a metric M = L L^T, L^T R(r), whose inner products are the scores."""
        ...

    def factor(self) -> tuple[Tensor | None, Rotation]:
        """(B, rest) with rotate(x) = rest.rotate(B^T x): B [1 or H, d, d] for folding into the projections, or None."""
        ...

    def split(self, count: int) -> list[Rotation]:
        """Equal parts of the heads, in order: those of each layer, where one encoding serves several."""
        ...

    def planar(self) -> tuple[Tensor, Tensor] | None:
        """(c, s), each [..., 1 or H, N, P], where rotate(x) is (c x_p - s x_(p+P), s x_p + c x_(p+P)) in each plane
        and nothing else, so that a kernel can do it; None where it is more."""
        ...


def parts_of(x: Tensor, count: int, dim: int) -> list[Tensor]:
    """Equal parts along the axis of the heads, or the same for each where all heads have one."""
    return [x] * count if x.shape[dim] == 1 else list(x.chunk(count, dim))


def check_fit(x: Tensor, lead: Sequence[int], places: int, head_dim: int) -> None:
    """An error unless x [B, H, N, d] is what a rotation [1 or B, 1 or H, N] of heads of width d is for.

    Where it is not, places would broadcast over tokens, or samples and dimensions be left out.
    """
    if x.shape[-1] != head_dim:
        raise ValueError(f"the rotation is of heads of width {head_dim}, and not of {x.shape[-1]}.")
    if x.shape[-2] != places:
        raise ValueError(
            f"the rotation is of {places} positions and not of {x.shape[-2]}: each token needs one, prefix tokens "
            f"too (with_prefix). Queries and keys at positions of their own are turned before attention: "
            f"rotation_q.rotate(q), rotation_k.rotate(k)."
        )
    have = x.shape[:-2]
    if len(lead) > len(have) or any(n not in (1, m) for n, m in zip(lead[::-1], have[::-1], strict=False)):
        raise ValueError(
            f"the rotation is of (samples, heads) {tuple(lead)}, and not of {tuple(have)}: build the encoding with "
            f"num_heads={have[-1]}, and take by_layer(positions) of one that serves several layers."
        )


class PlaneRotation:
    """R = B Rot(theta) B^T; plane p is spanned by dimensions p and p + P, and dimensions from 2P up never turn.

    (Halves rather than neighbours form a plane, since slices are faster than strides. A permutation of the basis is
    no loss of generality.)

    Args:
        cos, sin: of theta, [..., 1 or H, N, P], in float32 or better.
        head_dim: d >= 2P.
        basis: B, orthogonal, [1 or H, d, d]; None for the identity.
    """

    def __init__(self, cos: Tensor, sin: Tensor, head_dim: int, basis: Tensor | None = None):
        if 2 * cos.shape[-1] > head_dim:
            raise ValueError(f"{cos.shape[-1]} planes need a head width of {2 * cos.shape[-1]}, not {head_dim}.")
        self.cos, self.sin, self.head_dim, self.basis = cos, sin, head_dim, basis

    def check(self, x: Tensor) -> None:
        *lead, places, _ = self.cos.shape
        check_fit(x, lead, places, self.head_dim)

    def rotate(self, x: Tensor) -> Tensor:
        """Rot(theta) B^T x for x [B, H, N, d], in float32 or better inside, in the type of x outside."""
        self.check(x)
        dtype = torch.promote_types(x.dtype, self.cos.dtype)
        y = x.to(dtype)
        if self.basis is not None:
            with torch.autocast(x.device.type, enabled=False):
                y = y @ self.basis.to(dtype)  # rows x^T B = (B^T x)^T: [B, H, N, d]
        return (apply_rotary(y, self.cos, self.sin) if self.cos.shape[-1] else y).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """B Rot(-theta) x for x [B, H, N, d], in float32 or better inside, in the type of x outside."""
        self.check(x)
        dtype = torch.promote_types(x.dtype, self.cos.dtype)
        return self.outer(apply_rotary(x.to(dtype), self.cos, -self.sin)).to(x.dtype)

    def outer(self, x: Tensor) -> Tensor:
        """B x; L^-T x under a metric."""
        if self.basis is None:
            return x
        dtype = torch.promote_types(x.dtype, self.cos.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return self.on_the_left(self.basis.to(dtype), x.to(dtype)).to(x.dtype)

    def on_the_left(self, basis: Tensor, x: Tensor) -> Tensor:
        return x @ basis.mT  # rows x^T B^T = (B x)^T: [B, H, N, d]

    def turns(self) -> Tensor:
        """Rot(theta), [..., H, N, d, d]."""
        planes = self.cos.shape[-1]
        still = self.head_dim - 2 * planes
        sin = torch.nn.functional.pad(self.sin, (0, still))  # [..., H, N, d - P]
        cos = torch.nn.functional.pad(torch.cat([self.cos, self.cos], dim=-1), (0, still), value=1.0)
        return torch.diag_embed(cos) + torch.diag_embed(sin, -planes) - torch.diag_embed(sin, planes)

    def matrix(self) -> Tensor:
        """B Rot(theta) B^T, [..., H, N, d, d]."""
        rot = self.turns()
        if self.basis is None:
            return rot
        basis = self.basis.to(rot.dtype)[:, None]  # [H, 1, d, d]
        with torch.autocast(rot.device.type, enabled=False):
            return basis @ rot @ basis.mT

    def factor(self) -> tuple[Tensor | None, Rotation]:
        if self.basis is None:
            return None, self
        return self.basis, type(self)(self.cos, self.sin, self.head_dim)

    def split(self, count: int) -> list[Rotation]:
        cos, sin = parts_of(self.cos, count, -3), parts_of(self.sin, count, -3)
        basis = [None] * count if self.basis is None else parts_of(self.basis, count, 0)
        return [type(self)(c, s, self.head_dim, b) for c, s, b in zip(cos, sin, basis, strict=True)]

    def planar(self) -> tuple[Tensor, Tensor] | None:
        return (self.cos, self.sin) if self.basis is None else None


class MetricRotation(PlaneRotation):
    """T = L^-T Rot(theta) L^T under the metric M = L L^T: an isometry, T^T M T = M, whose scores are

        q^T T_i^T M T_j k = (Rot_i L^T q)^T (Rot_j L^T k)

    The basis is L, lower triangular and not orthogonal.
    """

    def on_the_left(self, basis: Tensor, x: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(basis, x, upper=False, left=False)  # rows x^T L^-1 = (L^-T x)^T

    def matrix(self) -> Tensor:
        """Rot(theta) L^T, whose inner products are the scores, [..., H, N, d, d]."""
        if self.basis is None:
            return self.turns()
        with torch.autocast(self.cos.device.type, enabled=False):
            return self.turns() @ self.basis.to(self.cos.dtype)[:, None].mT


def block_diagonal(blocks: Tensor) -> Tensor:
    """diag(R_1, .., R_m): [..., m, b, b] -> [..., m b, m b]."""
    full = torch.diag_embed(blocks.movedim(-3, -1), dim1=-4, dim2=-2)
    return full.flatten(-2).flatten(-3, -2)  # [..., m, b, m, b] -> [..., m b, m b]


class BlockRotation:
    """R = diag(R_1, .., R_m) in full, for encodings whose generators do not commute.

    Args:
        blocks: the b x b blocks along the diagonal, [..., 1 or H, N, m, b, b], in float32 or better.
    """

    def __init__(self, blocks: Tensor):
        self.blocks = blocks

    def check(self, x: Tensor) -> None:
        *lead, places, blocks, size, _ = self.blocks.shape
        check_fit(x, lead, places, blocks * size)

    def rotate(self, x: Tensor) -> Tensor:
        """R x for x [B, H, N, d], in the precision of the blocks inside, in the type of x outside."""
        self.check(x)
        dtype = torch.promote_types(x.dtype, self.blocks.dtype)
        parts = x.to(dtype).unflatten(-1, self.blocks.shape[-3:-1])  # [B, H, N, m, b]
        with torch.autocast(x.device.type, enabled=False):
            # Not `@`, which would repeat the blocks for each image.
            turned = torch.einsum("...hnmij,...hnmj->...hnmi", self.blocks.to(dtype), parts)
        return turned.flatten(-2).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """R^T x."""
        return BlockRotation(self.blocks.mT).rotate(x)

    def outer(self, x: Tensor) -> Tensor:
        return x

    def matrix(self) -> Tensor:
        """[..., H, N, d, d]."""
        return block_diagonal(self.blocks)

    def factor(self) -> tuple[Tensor | None, Rotation]:
        return None, self

    def split(self, count: int) -> list[Rotation]:
        return [BlockRotation(blocks) for blocks in parts_of(self.blocks, count, -5)]

    def planar(self) -> tuple[Tensor, Tensor] | None:
        return None
