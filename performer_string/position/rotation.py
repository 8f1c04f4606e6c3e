"""Rotations of queries and keys, one for each token and head, as encodings return them and attention uses them.

Every separable encoding has the form

    R(r) = B Rot(theta(r)) B^T,    theta(r) = Omega r

with a basis B and plane angles theta: commuting skew-symmetric generators share one orthogonal basis, in which each is
a set of plane rotations. The left B cancels in q^T R(r_i)^T R(r_j) k. So attention uses Rot(theta) B^T.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.ops.rotary import apply_rotary
from performer_string.utils.dtype import without_autocast
from performer_string.utils.numerics import broadcasts_to


class Rotation:
    """Rotations at fixed positions, as encodings return them and attention uses them.

    A subclass defines `check`, `rotate`, `unrotate`, `matrix` and `split`. The other methods are those of a rotation
    whose `rotate` applies all of R, and which is no plain rotation of planes.

    Attributes:
        added: class name of an encoding that adds to the tokens and rotates nothing, or None.
    """

    added: str | None = None

    def check(self, x: Tensor) -> None:
        """Raise a ValueError unless x [B, H, N, d] has the tokens and heads of this rotation."""
        raise NotImplementedError

    def rotate(self, x: Tensor) -> Tensor:
        """Return queries or keys [B, H, N, d] rotated by their positions, up to a factor that all tokens share.

        The factor is orthogonal and on the left of R, so that every inner product is that of R q and R k.
        """
        raise NotImplementedError

    def unrotate(self, x: Tensor) -> Tensor:
        """Return the inverse of `rotate`: unrotating at r_i after rotating at r_j is R(r_i)^-1 R(r_j)."""
        raise NotImplementedError

    def matrix(self) -> Tensor:
        """Return R(r), [..., H, N, d, d]; under a metric M = L L^T, L^T R(r), whose inner products are the scores."""
        raise NotImplementedError

    def split(self, count: int) -> Sequence[Rotation]:
        """Return the rotations of `count` equal parts of the heads, in order: the rotation of each layer served."""
        raise NotImplementedError

    def of_sample(self, index: int) -> Rotation:
        """Return the rotation of one sample of a batch; by default, the one that all samples share."""
        return self

    def outer(self, x: Tensor) -> Tensor:
        """Return x multiplied by the factor of R that `rotate` leaves out: outer(rotate(x)) is R x."""
        return x

    def factor(self) -> tuple[Tensor | None, Rotation]:
        """Return (B, rest) with rotate(x) = rest.rotate(B^T x), and B [1 or H, d, d], or None for no common basis."""
        return None, self

    def planar(self) -> tuple[Tensor, Tensor] | None:
        """Return (cos, sin), each [..., 1 or H, N, P], of a plain rotation of planes, or None.

        With them rotate(x) is (cos x_p - sin x_(p+P), sin x_p + cos x_(p+P)) in each plane p, which a kernel can fuse.
        """
        return None


def split_heads(x: Tensor, count: int, dim: int) -> list[Tensor]:
    """Return `count` equal parts along the axis of the heads, or `count` times x where all heads share one entry."""
    return [x] * count if x.shape[dim] == 1 else list(x.chunk(count, dim))


def one_sample(x: Tensor, index: int, dims: int) -> Tensor:
    """Return x [B, ...] of one sample, [1, ...], or x itself if it has no more than `dims` axes, or one sample."""
    return x if x.ndim <= dims or len(x) == 1 else x[index : index + 1]


def samples(leading: Sequence[int]) -> str:
    """Return the number of samples in words, from the numbers of samples and heads."""
    count = " x ".join(map(str, leading[:-1])) or "1"
    return f"{count} sample{'' if count == '1' else 's'}"


def check_rotation_input(
    x: Tensor, leading: Sequence[int], num_positions: int, head_dim: int, device: torch.device, remedy: str = ""
) -> None:
    """Check that x has the tokens, heads and device of a rotation. Otherwise positions would broadcast over tokens.

    Args:
        x: queries or keys, [B, H, N, d].
        leading: numbers of samples and heads of the rotation, (1 or B, 1 or H) or (1 or H,).
        num_positions: number of positions of the rotation.
        head_dim, device: width d of the rotation's heads, and its device.
        remedy: a further remedy for another width, for the message.

    Raises:
        ValueError: another width, number of tokens, samples or heads, or another device.
    """
    if x.ndim < 3:
        raise ValueError(f"queries and keys must be [B, H, N, d], not {list(x.shape)}.")
    if x.shape[-1] != head_dim:
        raise ValueError(
            f"the rotation is of heads of width {head_dim}, and not of {x.shape[-1]}: build the encoding with "
            f"head_dim={x.shape[-1]}{remedy}."
        )
    if x.shape[-2] != num_positions:
        swapped = x.ndim == 4 and x.shape[1] == num_positions
        hint = " Inputs are [B, H, N, d]: transpose(1, 2) those that are [B, N, H, d]." if swapped else ""
        raise ValueError(
            f"the rotation is of {num_positions} positions and not of {x.shape[-2]}: each token needs one, prefix "
            f"tokens too (with_prefix). Queries and keys at different positions are rotated before attention: "
            f"rotation_q.rotate(q), rotation_k.rotate(k).{hint}"
        )
    samples_heads = x.shape[:-2]
    fits = broadcasts_to(leading, samples_heads)
    if not fits and leading[-1] not in (1, samples_heads[-1]):
        raise ValueError(
            f"the rotation is of {leading[-1]} heads, and not of {samples_heads[-1]}: build the encoding with "
            f"num_heads={samples_heads[-1]}, and take by_layer(positions) of one that serves several layers."
        )
    if not fits:
        raise ValueError(
            f"the rotation is of {samples(leading)}, and not of {samples(samples_heads)}: positions are [N, C], alike "
            f"for all samples, or [B, N, C]."
        )
    if x.device != device:
        raise ValueError(f"the rotation is on {device}, and queries and keys are on {x.device}: move its positions.")


class PlaneRotation(Rotation):
    """Rotation of planes in a basis, R = B Rot(theta) B^T.

    Plane p is spanned by dimensions p and p + P, since slices are faster than strides. Dimensions from 2 P up are not
    rotated.

    Args:
        cos, sin: cosines and sines of theta, [..., 1 or H, N, P], in float32 or better.
        head_dim: width d of a head, at least 2 P.
        basis: orthogonal basis B, [1 or H, d, d]; None for the identity.

    Raises:
        ValueError: more planes than the head width has.
    """

    def __init__(self, cos: Tensor, sin: Tensor, head_dim: int, basis: Tensor | None = None):
        if 2 * cos.shape[-1] > head_dim:
            raise ValueError(f"{cos.shape[-1]} planes need a head width of {2 * cos.shape[-1]}, not {head_dim}.")
        self.cos, self.sin, self.head_dim, self.basis = cos, sin, head_dim, basis

    def check(self, x: Tensor) -> None:
        *leading, num_positions, _ = self.cos.shape
        check_rotation_input(x, leading, num_positions, self.head_dim, self.cos.device)

    def rotate(self, x: Tensor) -> Tensor:
        """Return Rot(theta) B^T x for x [B, H, N, d], computed in float32 or better, in the type of x."""
        self.check(x)
        dtype = torch.promote_types(x.dtype, self.cos.dtype)
        y = x.to(dtype)
        if self.basis is not None:
            with without_autocast(x):
                y = y @ self.basis.to(dtype)  # rows x^T B = (B^T x)^T: [B, H, N, d]
        return (apply_rotary(y, self.cos, self.sin) if self.cos.shape[-1] else y).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """Return B Rot(-theta) x for x [B, H, N, d], computed in float32 or better, in the type of x."""
        self.check(x)
        dtype = torch.promote_types(x.dtype, self.cos.dtype)
        return self.outer(apply_rotary(x.to(dtype), self.cos, -self.sin)).to(x.dtype)

    def outer(self, x: Tensor) -> Tensor:
        """Return B x for x [B, H, N, d]."""
        if self.basis is None:
            return x
        dtype = torch.promote_types(x.dtype, self.cos.dtype)
        with without_autocast(x):
            return self.multiply_basis(self.basis.to(dtype), x.to(dtype)).to(x.dtype)

    def multiply_basis(self, basis: Tensor, x: Tensor) -> Tensor:
        """Return B x for a basis and x of one type."""
        return x @ basis.mT  # rows x^T B^T = (B x)^T: [B, H, N, d]

    def rotation_matrix(self) -> Tensor:
        """Return Rot(theta), [..., H, N, d, d]."""
        planes = self.cos.shape[-1]
        fixed = self.head_dim - 2 * planes
        sin = torch.nn.functional.pad(self.sin, (0, fixed))  # [..., H, N, d - P]
        cos = torch.nn.functional.pad(torch.cat([self.cos, self.cos], dim=-1), (0, fixed), value=1.0)
        return torch.diag_embed(cos) + torch.diag_embed(sin, -planes) - torch.diag_embed(sin, planes)

    def matrix(self) -> Tensor:
        """Return B Rot(theta) B^T, [..., H, N, d, d]."""
        rot = self.rotation_matrix()
        if self.basis is None:
            return rot
        basis = self.basis.to(rot.dtype)[:, None]  # [H, 1, d, d]
        with without_autocast(rot):
            return basis @ rot @ basis.mT

    def factor(self) -> tuple[Tensor | None, Rotation]:
        """Return (B, Rot(theta)), or (None, self) without a basis."""
        if self.basis is None:
            return None, self
        return self.basis, type(self)(self.cos, self.sin, self.head_dim)

    def split(self, count: int) -> Sequence[Rotation]:
        cos, sin = split_heads(self.cos, count, -3), split_heads(self.sin, count, -3)
        basis = [None] * count if self.basis is None else split_heads(self.basis, count, 0)
        return [type(self)(c, s, self.head_dim, b) for c, s, b in zip(cos, sin, basis, strict=True)]

    def of_sample(self, index: int) -> Rotation:
        cos, sin = one_sample(self.cos, index, 3), one_sample(self.sin, index, 3)
        return type(self)(cos, sin, self.head_dim, self.basis)

    def planar(self) -> tuple[Tensor, Tensor] | None:
        """Return (cos, sin), or None where there is a basis."""
        return (self.cos, self.sin) if self.basis is None else None


class MetricRotation(PlaneRotation):
    """Rotation under a metric M = L L^T, T = L^-T Rot(theta) L^T.

    It is an isometry, T^T M T = M, and its scores are

        q^T T_i^T M T_j k = (Rot_i L^T q)^T (Rot_j L^T k)

    Args:
        basis: factor L, lower triangular and not orthogonal, [1 or H, d, d]. The other arguments are those of
            `PlaneRotation`.
    """

    def multiply_basis(self, basis: Tensor, x: Tensor) -> Tensor:
        """Return L^-T x for x [B, H, N, d]."""
        return torch.linalg.solve_triangular(basis, x, upper=False, left=False)  # rows x^T L^-1 = (L^-T x)^T

    def matrix(self) -> Tensor:
        """Return Rot(theta) L^T, whose inner products are the scores, [..., H, N, d, d]."""
        if self.basis is None:
            return self.rotation_matrix()
        with without_autocast(self.cos):
            return self.rotation_matrix() @ self.basis.to(self.cos.dtype)[:, None].mT
