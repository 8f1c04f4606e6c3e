"""Cayley-STRING: rotary planes in a learned orthogonal basis, the Cayley transform of a skew-symmetric matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from performer_string.choices import lookup
from performer_string.encodings.base import SeparableEncoding
from performer_string.encodings.frequencies import axial_frequencies, mixed_frequencies, plane_generators, planes_of

Frequencies = Literal["mixed", "axial"]


class DenseGenerator(nn.Module):
    """Skew-symmetric S with every entry above the diagonal learned, [heads, d, d]."""

    def __init__(self, heads: int, head_dim: int, init_std: float):
        super().__init__()
        self.head_dim = head_dim
        self.upper = nn.Parameter(torch.randn(heads, head_dim * (head_dim - 1) // 2) * init_std)

    def forward(self) -> Tensor:
        rows, columns = torch.triu_indices(self.head_dim, self.head_dim, offset=1, device=self.upper.device)
        skew = self.upper.new_zeros(self.upper.shape[0], self.head_dim, self.head_dim)
        skew[:, rows, columns] = self.upper
        return skew - skew.mT


GENERATORS: dict[str, type[DenseGenerator]] = {"dense": DenseGenerator}


def cayley(skew: Tensor) -> Tensor:
    """P = (I - S)(I + S)^-1, orthogonal for skew-symmetric S [..., d, d]; float32 or better, whatever autocast says."""
    skew = skew.to(torch.promote_types(skew.dtype, torch.float32))
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
    return torch.linalg.solve(eye + skew, eye - skew)  # the two factors commute


class CayleySTRING(SeparableEncoding):
    """R(r) = P Rot(Omega r) P^T with P = (I - S)(I + S)^-1 and S a learned skew-symmetric generator for each head.

    Source: Schenck et al., arXiv:2502.02562, section 3.2.

    Args:
        generator: which entries of S are learned: `"dense"` is all of them.
        frequencies: `"mixed"` as RoPE-Mixed, `"axial"` as axial RoPE.
        learn_frequencies: whether Omega is learned.
        base: of the initial frequencies; 10 for mixed and 100 for axial unless given.
        init_std: standard deviation of the entries of S at the start; 0 starts from RoPE itself.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        coord_dim: int = 2,
        grid: Sequence[int] | None = None,
        *,
        generator: str = "dense",
        frequencies: Frequencies = "mixed",
        learn_frequencies: bool = True,
        base: float | None = None,
        init_std: float = 0.02,
        share_heads: bool = False,
    ):
        super().__init__(head_dim, num_heads, coord_dim, grid, share_heads=share_heads)
        planes = planes_of(head_dim, "cayley-string")
        if frequencies not in get_args(Frequencies):
            raise ValueError(f"frequencies has to be one of {get_args(Frequencies)}, not {frequencies!r}.")
        if frequencies == "mixed":
            omega = mixed_frequencies(self.own_heads, planes, coord_dim, 10.0 if base is None else base)
        else:
            omega = axial_frequencies(planes, coord_dim, 100.0 if base is None else base)
            omega = omega.repeat(self.own_heads, 1, 1)
        self.omega = nn.Parameter(omega, requires_grad=learn_frequencies)
        self.skew = lookup("generator", generator, GENERATORS)(self.own_heads, head_dim, init_std)

    def frequencies(self) -> Tensor:
        return self.omega

    def basis(self) -> Tensor:
        return cayley(self.skew())

    def generators(self) -> Tensor:
        eye, skew = torch.eye(self.head_dim).to(self.omega), self.skew()
        p = ((eye - skew) @ torch.linalg.inv(eye + skew))[:, None]  # [H, 1, d, d]
        return self.all_heads(p @ plane_generators(self.omega, self.head_dim) @ p.mT)
