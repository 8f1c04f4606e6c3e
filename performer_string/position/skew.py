"""Learned skew-symmetric matrices and their Cayley transform: bases for Cayley-STRING.

The papers number rows and columns so that plane p is spanned by dimensions 2 p and 2 p + 1. In this library plane p is
spanned by p and p + P; `plane_order` converts between the two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from performer_string.utils.dtype import full_precision, without_autocast
from performer_string.utils.validation import check_not_negative


def plane_order(head_dim: int, device: torch.device | None = None) -> Tensor:
    """Return the index in this library of each dimension of the papers: 0, P, 1, P + 1, ...

    Args:
        head_dim: width d of a head. The last dimension of an odd width is the last in both.
        device: device of the indices.

    Returns:
        Indices, [d].
    """
    planes, index = head_dim // 2, torch.arange(head_dim, device=device)
    first, second, rest = index.split((planes, planes, head_dim - 2 * planes))
    return torch.cat([torch.stack([first, second], dim=1).flatten(), rest])


def cayley(skew: Tensor) -> Tensor:
    """Return the Cayley transform P = (I - S)(I + S)^-1, computed as 2 (I + S)^-1 - I.

    That takes half the work of a linear solution in the backward pass. No singular value of I + S is below 1, so the
    inverse needs no check, which would synchronise with the device.

    Args:
        skew: skew-symmetric matrices S, [..., d, d].

    Returns:
        Orthogonal matrices, [..., d, d], in float32 or better under autocast too.
    """
    skew = full_precision(skew)
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
    return 2 * torch.linalg.inv_ex(eye + skew).inverse - eye


class SkewGenerator(nn.Module):
    """Skew-symmetric matrix S with learned entries, whose Cayley transform is a basis.

    A subclass defines `rows_and_columns`. Indices that follow from the sizes are computed in each call and are no
    buffers: averages of buffers, as those of `torch.optim.swa_utils`, round integers down.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        count: number n of learned entries above the diagonal of each head.
        init_std: standard deviation of the initial entries.
        both_triangles: whether the parameters are the entries of an unconstrained A, above the diagonal and then those
            opposite to them, with S = A - A^T. Each step of Adam then moves S twice as far. S starts sqrt(2) times as
            large.

    Raises:
        ValueError: an init_std below 0.
    """

    def __init__(self, heads: int, head_dim: int, count: int, init_std: float, both_triangles: bool = False):
        super().__init__()
        check_not_negative("init_std", init_std)
        self.head_dim, self.both_triangles = head_dim, both_triangles
        self.entries = nn.Parameter(torch.randn(heads, count * (1 + both_triangles)) * init_std)

    def rows_and_columns(self) -> Tensor:
        """Return rows and columns (i < j) of the learned entries, numbered as in the papers.

        Returns:
            Indices on the device of the entries, [2, n] for all heads or [heads, 2, n].
        """
        raise NotImplementedError

    @property
    def order(self) -> Tensor:
        """The order of dimensions, [d]; see `plane_order`."""
        return plane_order(self.head_dim, self.entries.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if "support" not in dict(self.named_buffers()):  # checkpoints of the first versions have it
            state_dict.pop(prefix + "support", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def active_entries(self) -> Tensor:
        """Return the entries that enter S, [heads, n]; the others are zero."""
        if not self.both_triangles:
            return self.entries
        above, below = full_precision(self.entries).chunk(2, dim=-1)
        return above - below

    def skew(self) -> Tensor:
        """Return S, [heads, d, d]."""
        heads = torch.arange(len(self.entries), device=self.entries.device)[:, None]
        rows, columns = self.order[self.rows_and_columns()].unbind(-2)  # [n] or [heads, n]
        active = self.active_entries()
        upper = active.new_zeros(len(active), self.head_dim, self.head_dim)
        upper[heads, rows, columns] = active
        return upper - upper.mT

    def basis(self) -> Tensor:
        """Return P = (I - S)(I + S)^-1, [heads, d, d]."""
        return cayley(self.skew())

    def conjugate(self, generators: Tensor) -> Tensor:
        """Return P L P^-1 for L [heads, C, d, d], with explicit inverses: the definition for `Encoding.generators`."""
        generators, skew = full_precision(generators), full_precision(self.skew())
        eye = torch.eye(self.head_dim).to(generators)
        with without_autocast(skew):
            p = ((eye - skew) @ torch.linalg.inv(eye + skew))[:, None]  # [heads, 1, d, d]
            return p @ generators @ torch.linalg.inv(p)


def upper_triangle(head_dim: int, device: torch.device | None = None) -> Tensor:
    """Return rows and columns of the entries above the diagonal, [2, d (d - 1) / 2]."""
    return torch.triu_indices(head_dim, head_dim, offset=1, device=device)


class DenseGenerator(SkewGenerator):
    """Skew-symmetric matrix with every entry learned. Source: arXiv:2502.02562, section 3.2.

    Args:
        both_triangles: whether the entries of both triangles of A are learned, with S = A - A^T, as in the sources.
            The other arguments are those of `SkewGenerator`.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, both_triangles: bool = False):
        super().__init__(heads, head_dim, math.comb(head_dim, 2), init_std, both_triangles)

    def rows_and_columns(self) -> Tensor:
        """Return rows and columns of the learned entries, [2, d (d - 1) / 2]."""
        return upper_triangle(self.head_dim, self.entries.device)


class BlockDiagonalGenerator(SkewGenerator):
    """Skew-symmetric blocks [[0, s], [-s, 0]] on the planes, whose Cayley transform rotates each by 2 atan(s).

    It commutes with the rotation of its plane, so that the encoding is RoPE. The last dimension of an odd width is not
    rotated. Source: Cicekdag, Yang and Samal (2025), sections 3.1 and 3.2.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float):
        super().__init__(heads, head_dim, head_dim // 2, init_std)

    def rows_and_columns(self) -> Tensor:
        """Return rows and columns of the learned entries, [2, d // 2]."""
        planes = torch.arange(self.head_dim // 2, device=self.entries.device)
        return torch.stack([2 * planes, 2 * planes + 1])

    def basis(self) -> Tensor:
        """Return P, [heads, d, d], in closed form: cos = (1 - s^2) / (1 + s^2), sin = 2 s / (1 + s^2)."""
        s = full_precision(self.entries)
        cos, sin = (1 - s * s) / (1 + s * s), 2 * s / (1 + s * s)
        p = torch.arange(s.shape[1], device=s.device)
        basis = s.new_zeros(len(s), self.head_dim, self.head_dim)  # not torch.eye, into which `vmap` cannot write
        basis[:, p, p], basis[:, p, p + len(p)] = cos, -sin
        basis[:, p + len(p), p], basis[:, p + len(p), p + len(p)] = sin, cos
        basis[:, 2 * len(p) :, 2 * len(p) :] = 1
        return basis
