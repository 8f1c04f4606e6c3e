"""Learned skew-symmetric matrices, dense or sparse, and their Cayley transform: bases for Cayley-STRING.

The papers number rows and columns so that plane p is spanned by dimensions 2 p and 2 p + 1. In this library plane p is
spanned by p and p + P; `plane_order` converts between the two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from performer_string.utils.buffers import ComputedBuffers
from performer_string.utils.dtype import full_precision, without_autocast


def plane_order(head_dim: int) -> Tensor:
    """Return the index in this library of each dimension of the papers: 0, P, 1, P + 1, ...

    Args:
        head_dim: width d of a head. The last dimension of an odd width is the last in both.

    Returns:
        [d].
    """
    planes = head_dim // 2
    pairs = torch.stack([torch.arange(planes), torch.arange(planes) + planes], dim=1).flatten()
    return torch.cat([pairs, torch.arange(2 * planes, head_dim)])


def cayley(skew: Tensor) -> Tensor:
    """Return the Cayley transform P = (I - S)(I + S)^-1, computed as 2 (I + S)^-1 - I.

    That takes half the work of a linear solution in the backward pass. No singular value of I + S is below 1, so the
    inverse needs no check, which would synchronise with the device.

    Args:
        skew: skew-symmetric S, [..., d, d].

    Returns:
        Orthogonal matrices, [..., d, d], in float32 or better under autocast too.
    """
    skew = full_precision(skew)
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
    return 2 * torch.linalg.inv_ex(eye + skew).inverse - eye


class SkewGenerator(ComputedBuffers):
    """Skew-symmetric matrix S with learned entries, whose Cayley transform is a basis.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        support: rows and columns (i < j) of the learned entries of each head, [heads, 2, n], saved with checkpoints.
        init_std: standard deviation of the initial entries.
    """

    support: Tensor
    order: Tensor

    def __init__(self, heads: int, head_dim: int, support: Tensor, init_std: float):
        super().__init__()
        self.head_dim = head_dim
        self.register_buffer("support", support)
        self.entries = nn.Parameter(torch.randn(heads, support.shape[-1]) * init_std)
        self.register_computed_buffers()

    def computed_buffers(self) -> dict[str, Tensor]:
        """Return the order of dimensions, [d]."""
        return {"order": plane_order(self.head_dim)}

    def active_entries(self) -> Tensor:
        """Return the entries that enter S, [heads, n]; the others are zero."""
        return self.entries

    def skew(self) -> Tensor:
        """Return S, [heads, d, d]."""
        heads = torch.arange(len(self.entries), device=self.entries.device)[:, None]
        rows, columns = self.order[self.support].unbind(1)  # [heads, n]
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


def upper_triangle(head_dim: int) -> Tensor:
    """Return rows and columns of the entries above the diagonal, [2, d (d - 1) / 2]."""
    return torch.triu_indices(head_dim, head_dim, offset=1)


class DenseGenerator(SkewGenerator):
    """Skew-symmetric matrix with every entry learned. Source: arXiv:2502.02562, section 3.2.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float):
        super().__init__(heads, head_dim, upper_triangle(head_dim).expand(heads, -1, -1).clone(), init_std)


class BandedGenerator(SkewGenerator):
    """Skew-symmetric matrix with learned entries (i, j) of j - i at most the bandwidth.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries.
        bandwidth: from 1 to d - 1; by default 2, or 1 where d = 2.

    Raises:
        ValueError: a bandwidth out of range.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, bandwidth: int | None = None):
        bandwidth = min(2, head_dim - 1) if bandwidth is None else bandwidth
        if not 1 <= bandwidth < head_dim:
            raise ValueError(f"bandwidth has to lie between 1 and {head_dim - 1} (d - 1), not {bandwidth}.")
        pairs = [(i, j) for i in range(head_dim) for j in range(i + 1, min(i + bandwidth + 1, head_dim))]
        band = torch.tensor(pairs).T  # [2, n]; not by a boolean mask, which the meta device does not support
        super().__init__(heads, head_dim, band.expand(heads, -1, -1).clone(), init_std)


class RandomGenerator(SkewGenerator):
    """Skew-symmetric matrix with a random fraction of the entries learned.

    The entries of each head are chosen at construction and saved with the checkpoint.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries.
        fraction: of the entries above the diagonal, in (0, 1]; at least one entry.

    Raises:
        ValueError: a fraction out of range.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, fraction: float = 0.3):
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction has to lie in (0, 1], not {fraction}.")
        upper = upper_triangle(head_dim)
        total = upper.shape[1]
        count = max(1, round(fraction * total))
        indices = torch.stack([torch.randperm(total)[:count].sort().values for _ in range(heads)])  # [heads, n]
        super().__init__(heads, head_dim, upper[:, indices].transpose(0, 1).contiguous(), init_std)


class TopKGenerator(SkewGenerator):
    """Skew-symmetric matrix of the k entries of largest magnitude of each head.

    All entries are parameters; only those k enter S and get gradients.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries.
        k: entries above the diagonal, from 1 to d (d - 1) / 2; by default 24, or all where there are fewer.

    Raises:
        ValueError: k out of range.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, k: int | None = None):
        upper = upper_triangle(head_dim)
        k = min(24, upper.shape[1]) if k is None else k
        if not 1 <= k <= upper.shape[1]:
            raise ValueError(f"k has to lie between 1 and {upper.shape[1]} (d (d-1) / 2), not {k}.")
        super().__init__(heads, head_dim, upper.expand(heads, -1, -1).clone(), init_std)
        self.k = k

    def active_entries(self) -> Tensor:
        """Return the entries with zeros in place of all but the k largest of each head, [heads, n]."""
        largest = self.entries.detach().abs().topk(self.k, dim=-1).indices  # [heads, k]
        return self.entries * torch.zeros_like(self.entries).scatter(-1, largest, 1.0)


class TopKOfMatrixGenerator(SkewGenerator):
    """Skew-symmetric S = A - A^T with A of the k single entries of largest magnitude, and those opposite to them.

    This is how Cicekdag, Yang and Samal (2025, section 3.5) count: k of the d (d - 1) entries off the diagonal of an
    unconstrained matrix, whose mask is then made symmetric. So k entries give between k / 2 and k pairs of S. Both
    entries of a pair are parameters, so that S moves twice as far with each step of Adam.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries of A; that of S is sqrt(2) times as large.
        k: entries off the diagonal, from 1 to d (d - 1); by default 24, or all where there are fewer.

    Raises:
        ValueError: k out of range.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, k: int | None = None):
        upper = upper_triangle(head_dim)
        total = 2 * upper.shape[1]
        k = min(24, total) if k is None else k
        if not 1 <= k <= total:
            raise ValueError(f"k has to lie between 1 and {total} (d (d-1)), not {k}.")
        super().__init__(heads, head_dim, upper.expand(heads, -1, -1).clone(), init_std)
        self.entries = nn.Parameter(torch.randn(heads, total) * init_std)  # above the diagonal, then those opposite
        self.k = k

    def active_entries(self) -> Tensor:
        """Return A_ij - A_ji of the pairs of which one is among the k largest, and zeros for the others, [heads, n]."""
        largest = self.entries.detach().abs().topk(self.k, dim=-1).indices  # [heads, k]
        kept = torch.zeros_like(self.entries).scatter(-1, largest, 1.0)
        above, below = full_precision(self.entries).chunk(2, dim=-1)
        return (above - below) * torch.maximum(*kept.chunk(2, dim=-1))


class BlockDiagonalGenerator(SkewGenerator):
    """Skew-symmetric matrix of 2 x 2 blocks on the planes, whose Cayley transform rotates each by -2 atan(s).

    It commutes with the rotation of its plane, so that the encoding is RoPE. It is one of the variants of the sources.
    The last dimension of an odd width is not rotated.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float):
        planes = torch.arange(head_dim // 2)
        super().__init__(heads, head_dim, torch.stack([2 * planes, 2 * planes + 1]).repeat(heads, 1, 1), init_std)

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


GENERATORS: dict[str, type[SkewGenerator]] = {
    "dense": DenseGenerator,
    "block-diagonal": BlockDiagonalGenerator,
    "banded": BandedGenerator,
    "top-k": TopKGenerator,
    "top-k-of-matrix": TopKOfMatrixGenerator,
    "random": RandomGenerator,
}
