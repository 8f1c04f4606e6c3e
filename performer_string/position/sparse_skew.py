"""Skew-symmetric matrices with few learned entries: bases for Cayley-STRING that cost fewer parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from performer_string.position.skew import DenseGenerator, SkewGenerator, upper_triangle


class BandedGenerator(SkewGenerator):
    """Skew-symmetric matrix whose learned entries (i, j) have j - i at most the bandwidth.

    Source: Cicekdag, Yang and Samal (2025), section 3.4.

    Args:
        bandwidth: largest j - i of the learned entries, from 1 to d - 1; by default 2, or 1 where d = 2.
        both_triangles: whether the entries of both triangles of A are learned, with S = A - A^T, as in the sources.
            The other arguments are those of `SkewGenerator`.

    Raises:
        ValueError: a bandwidth out of range.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        init_std: float,
        *,
        bandwidth: int | None = None,
        both_triangles: bool = False,
    ):
        bandwidth = min(2, head_dim - 1) if bandwidth is None else bandwidth
        if not 1 <= bandwidth < head_dim:
            raise ValueError(f"bandwidth must lie between 1 and {head_dim - 1} (d - 1), not {bandwidth}.")
        count = sum(head_dim - offset for offset in range(1, bandwidth + 1))
        super().__init__(heads, head_dim, count, init_std, both_triangles)
        self.bandwidth = bandwidth

    def rows_and_columns(self) -> Tensor:
        """Return rows and columns of the learned entries, [2, n]."""
        whole, reach, device = self.head_dim - self.bandwidth, self.bandwidth, self.entries.device
        rows = torch.arange(whole, device=device)  # rows whose band ends before the edge
        columns = rows[:, None] + torch.arange(1, reach + 1, device=device)
        return torch.cat(
            [torch.stack([rows.repeat_interleave(reach), columns.flatten()]), upper_triangle(reach, device) + whole], 1
        )


class RandomGenerator(SkewGenerator):
    """Skew-symmetric matrix with a random fraction of the entries learned.

    The entries of each head are chosen at construction and saved with the checkpoint.

    Args:
        fraction: fraction of the entries above the diagonal that are learned, in (0, 1]; at least one entry is.
            The other arguments are those of `SkewGenerator`.

    Raises:
        ValueError: a fraction out of range.
    """

    support: Tensor

    def __init__(self, heads: int, head_dim: int, init_std: float, *, fraction: float = 0.3):
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must lie in (0, 1], not {fraction}.")
        upper = upper_triangle(head_dim)
        total = upper.shape[1]
        count = max(1, round(fraction * total))
        indices = torch.stack([torch.randperm(total)[:count].sort().values for _ in range(heads)])  # [heads, n]
        super().__init__(heads, head_dim, count, init_std)
        self.register_buffer("support", upper[:, indices].transpose(0, 1).contiguous())  # drawn, so that it is saved

    def rows_and_columns(self) -> Tensor:
        """Return rows and columns of the learned entries, [heads, 2, n]."""
        return self.support


def mask_of_largest(entries: Tensor, k: int) -> Tensor:
    """Return 1 at the k entries of largest magnitude of each head, and 0 elsewhere, [heads, n]."""
    largest = entries.detach().abs().topk(k, dim=-1).indices  # [heads, k]
    return torch.zeros_like(entries).scatter(-1, largest, 1.0)


class TopKGenerator(DenseGenerator):
    """Skew-symmetric matrix of the k entries of largest magnitude of each head.

    All entries are parameters; only those k enter S and get gradients.

    Args:
        k: number of entries above the diagonal, from 1 to d (d - 1) / 2; by default 24, or all where there are fewer.
            The other arguments are those of `SkewGenerator`.

    Raises:
        ValueError: k out of range.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, k: int | None = None):
        total = math.comb(head_dim, 2)
        k = min(24, total) if k is None else k
        if not 1 <= k <= total:
            raise ValueError(f"k must lie between 1 and {total} (d (d-1) / 2), not {k}.")
        super().__init__(heads, head_dim, init_std)
        self.k = k

    def active_entries(self) -> Tensor:
        """Return the entries with zeros in place of all but the k largest of each head, [heads, n]."""
        return self.entries * mask_of_largest(self.entries, self.k)


class TopKOfMatrixGenerator(DenseGenerator):
    """Skew-symmetric S = A - A^T, with the k entries of A of largest magnitude and the entries opposite to them.

    This is the count of Cicekdag, Yang and Samal (2025, section 3.5). Of an unconstrained matrix, k of the d (d - 1)
    entries off the diagonal stay, and the mask is then made symmetric. So k entries give between k / 2 and k pairs of
    S. Both entries of a pair are parameters, so that S moves twice as far with each step of Adam.

    Args:
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries of A; that of S is sqrt(2) times as large.
        k: number of entries off the diagonal, from 1 to d (d - 1); by default 24, or all where there are fewer.

    Raises:
        ValueError: k out of range.
    """

    def __init__(self, heads: int, head_dim: int, init_std: float, *, k: int | None = None):
        total = 2 * math.comb(head_dim, 2)
        k = min(24, total) if k is None else k
        if not 1 <= k <= total:
            raise ValueError(f"k must lie between 1 and {total} (d (d-1)), not {k}.")
        super().__init__(heads, head_dim, init_std, both_triangles=True)
        self.k = k

    def active_entries(self) -> Tensor:
        """Return A_ij - A_ji for pairs with one of the k largest entries, and zeros for other pairs, [heads, n]."""
        above, below = mask_of_largest(self.entries, self.k).chunk(2, dim=-1)
        return super().active_entries() * torch.maximum(above, below)
