"""Learned skew-symmetric matrices, dense or sparse, and their Cayley transform: bases for Cayley-STRING.

Rows and columns are numbered as the papers do, where plane p is spanned by the neighbours 2p and 2p + 1; `planar_order`
says where those dimensions lie in this library, where a plane is (p, p + P).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from performer_string.utils.buffers import ComputedBuffers
from performer_string.utils.dtype import full_precision


def planar_order(head_dim: int) -> Tensor:
    """Where dimension 0, 1, 2, ... of the papers lies here: 0, P, 1, P + 1, ...; a last odd one stays last. [d]"""
    planes = head_dim // 2
    pairs = torch.stack([torch.arange(planes), torch.arange(planes) + planes], dim=1).flatten()
    return torch.cat([pairs, torch.arange(2 * planes, head_dim)])


def cayley(skew: Tensor) -> Tensor:
    """P = (I - S)(I + S)^-1, orthogonal for skew-symmetric S [..., d, d]; float32 or better, whatever autocast says.

    As 2 (I + S)^-1 - I: half the work of a solution in the backward pass. I + S has no singular value below 1, so that
    nothing has to be looked at, which on other devices than the CPU would make the program wait.
    """
    skew = full_precision(skew)
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
    return 2 * torch.linalg.inv_ex(eye + skew).inverse - eye


class SkewGenerator(ComputedBuffers):
    """Skew-symmetric S with some of its entries above the diagonal learned; its Cayley transform is the basis.

    Args:
        heads: how many matrices.
        head_dim: d.
        support: rows and columns (i < j) of the learned entries of each head, [heads, 2, n]. It is saved.
        init_std: of the entries at the start.
    """

    support: Tensor
    place: Tensor

    def __init__(self, heads: int, head_dim: int, support: Tensor, init_std: float):
        super().__init__()
        self.head_dim = head_dim
        self.register_buffer("support", support)
        self.entries = nn.Parameter(torch.randn(heads, support.shape[-1]) * init_std)
        self.register_computed_buffers()

    def computed_buffers(self) -> dict[str, Tensor]:
        return {"place": planar_order(self.head_dim)}

    def kept(self) -> Tensor:
        """The entries as they enter S, [heads, n]."""
        return self.entries

    def skew(self) -> Tensor:
        """S, [heads, d, d]."""
        heads = torch.arange(len(self.entries), device=self.entries.device)[:, None]
        rows, columns = self.place[self.support].unbind(1)  # [heads, n]
        upper = self.entries.new_zeros(len(self.entries), self.head_dim, self.head_dim)
        upper[heads, rows, columns] = self.kept()
        return upper - upper.mT

    def basis(self) -> Tensor:
        """P = (I - S)(I + S)^-1, [heads, d, d]."""
        return cayley(self.skew())

    def conjugate(self, generators: Tensor) -> Tensor:
        """P L P^-1 for L [heads, C, d, d], with explicit inverses: the definition, for `Encoding.generators`."""
        generators, skew = full_precision(generators), full_precision(self.skew())
        eye = torch.eye(self.head_dim).to(generators)
        with torch.autocast(skew.device.type, enabled=False):
            p = ((eye - skew) @ torch.linalg.inv(eye + skew))[:, None]  # [heads, 1, d, d]
            return p @ generators @ torch.linalg.inv(p)


def upper_triangle(head_dim: int) -> Tensor:
    """Rows and columns above the diagonal, [2, d (d-1) / 2]."""
    return torch.triu_indices(head_dim, head_dim, offset=1)


class DenseGenerator(SkewGenerator):
    """Every entry above the diagonal is learned (arXiv:2502.02562, section 3.2)."""

    def __init__(self, heads: int, head_dim: int, init_std: float):
        super().__init__(heads, head_dim, upper_triangle(head_dim).expand(heads, -1, -1).clone(), init_std)


class BandedGenerator(SkewGenerator):
    """Entries with j - i at most the bandwidth.

    Args:
        bandwidth: b, from 1 to d - 1; 2 unless given, or 1 where there are no more.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, bandwidth: int | None = None):
        bandwidth = min(2, head_dim - 1) if bandwidth is None else bandwidth
        if not 1 <= bandwidth < head_dim:
            raise ValueError(f"bandwidth has to lie between 1 and {head_dim - 1} (d - 1), not {bandwidth}.")
        places = [(i, j) for i in range(head_dim) for j in range(i + 1, min(i + bandwidth + 1, head_dim))]
        band = torch.tensor(places).T  # [2, n]; no boolean mask, which the meta device has not
        super().__init__(heads, head_dim, band.expand(heads, -1, -1).clone(), init_std)


class RandomGenerator(SkewGenerator):
    """A random share of the entries, drawn for each head at construction and saved with the checkpoint.

    Args:
        fraction: f in (0, 1] of the strict upper triangle; at least one entry.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, fraction: float = 0.3):
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction has to lie in (0, 1], not {fraction}.")
        upper = upper_triangle(head_dim)
        total = upper.shape[1]
        count = max(1, round(fraction * total))
        chosen = torch.stack([torch.randperm(total)[:count].sort().values for _ in range(heads)])  # [heads, n]
        super().__init__(heads, head_dim, upper[:, chosen].transpose(0, 1).contiguous(), init_std)


class TopKGenerator(SkewGenerator):
    """All entries are kept as parameters; the k of largest magnitude of each head enter S and get gradients.

    Args:
        k: from 1 to d (d-1) / 2, counted above the diagonal; 24 unless given, or all where there are fewer.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, k: int | None = None):
        upper = upper_triangle(head_dim)
        k = min(24, upper.shape[1]) if k is None else k
        if not 1 <= k <= upper.shape[1]:
            raise ValueError(f"k has to lie between 1 and {upper.shape[1]} (d (d-1) / 2), not {k}.")
        super().__init__(heads, head_dim, upper.expand(heads, -1, -1).clone(), init_std)
        self.k = k

    def kept(self) -> Tensor:
        largest = self.entries.detach().abs().topk(self.k, dim=-1).indices  # [heads, k]
        return self.entries * torch.zeros_like(self.entries).scatter(-1, largest, 1.0)


class BlockDiagonalGenerator(SkewGenerator):
    """2 x 2 blocks on the planes, of which the Cayley transform is a rotation by -2 atan(s) in each.

    It commutes with the rotation of its plane, so that the encoding is RoPE itself; it is here because it is one of
    the sources' variants. An odd width leaves the last dimension alone.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float):
        planes = torch.arange(head_dim // 2)
        super().__init__(heads, head_dim, torch.stack([2 * planes, 2 * planes + 1]).repeat(heads, 1, 1), init_std)

    def basis(self) -> Tensor:
        s = full_precision(self.entries)
        cos, sin = (1 - s * s) / (1 + s * s), 2 * s / (1 + s * s)
        p = torch.arange(s.shape[1], device=s.device)
        basis = s.new_zeros(len(s), self.head_dim, self.head_dim)  # and not torch.eye, which `vmap` could not write to
        basis[:, p, p], basis[:, p, p + len(p)] = cos, -sin
        basis[:, p + len(p), p], basis[:, p + len(p), p + len(p)] = sin, cos
        basis[:, 2 * len(p) :, 2 * len(p) :] = 1
        return basis


GENERATORS: dict[str, type[SkewGenerator]] = {
    "dense": DenseGenerator,
    "block-diagonal": BlockDiagonalGenerator,
    "banded": BandedGenerator,
    "top-k": TopKGenerator,
    "random": RandomGenerator,
}
