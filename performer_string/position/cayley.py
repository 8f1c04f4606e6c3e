"""Cayley-STRING: rotary planes in a learned orthogonal basis, the Cayley transform of a skew-symmetric matrix."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor, nn

from performer_string.position.base import SeparableEncoding, Sizes
from performer_string.position.frequencies import axial_frequencies, mixed_frequencies, plane_generators, planes_of
from performer_string.position.skew import GENERATORS, SkewGenerator
from performer_string.utils.registry import construct, lookup

Frequencies = Literal["mixed", "axial"]


def build_generator(name: str, heads: int, head_dim: int, init_std: float, options: dict[str, Any]) -> SkewGenerator:
    """A learned skew-symmetric matrix by its name in `GENERATORS`."""
    kind = lookup("generator", name, GENERATORS)
    return construct("generator", name, kind, options, heads=heads, head_dim=head_dim, init_std=init_std)


class CayleySTRING(SeparableEncoding):
    """R(r) = P Rot(Omega r) P^T with P = (I - S)(I + S)^-1 and S a learned skew-symmetric generator for each head.

    Source: Schenck et al., arXiv:2502.02562, section 3.2.

    Args:
        generator: which entries of S are learned: `dense`, `block-diagonal`, `banded`, `top-k` or `random`.
        bandwidth: of `banded`, 1 to d - 1; 2 unless given.
        k: of `top-k`, 1 to d (d-1) / 2; 24 unless given.
        fraction: of `random`, in (0, 1]; 0.3 unless given.
        frequencies: `mixed` as RoPE-Mixed, `axial` as axial RoPE.
        learn_frequencies: whether Omega is learned.
        base: of the initial frequencies; 10 for mixed and 100 for axial unless given.
        init_std: standard deviation of the entries of S at the start; 0 starts from RoPE itself.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        generator: str = "dense",
        bandwidth: int | None = None,
        k: int | None = None,
        fraction: float | None = None,
        frequencies: Frequencies = "mixed",
        learn_frequencies: bool = True,
        base: float | None = None,
        init_std: float = 0.02,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        # Two by two blocks are the one generator for which an odd width has a meaning: a dimension that stays alone.
        planes = sizes.head_dim // 2 if generator == "block-diagonal" else planes_of(sizes.head_dim, "cayley-string")
        if frequencies not in get_args(Frequencies):
            raise ValueError(f"frequencies has to be one of {get_args(Frequencies)}, not {frequencies!r}.")
        if frequencies == "mixed":
            omega = mixed_frequencies(self.parameter_heads, planes, sizes.coord_dim, 10.0 if base is None else base)
        else:
            omega = axial_frequencies(planes, sizes.coord_dim, 100.0 if base is None else base)
            omega = omega.repeat(self.parameter_heads, 1, 1)
        self.omega = nn.Parameter(omega, requires_grad=learn_frequencies)
        options = {"bandwidth": bandwidth, "k": k, "fraction": fraction}
        chosen = {name: value for name, value in options.items() if value is not None}
        self.generator = build_generator(generator, self.parameter_heads, sizes.head_dim, init_std, chosen)

    def frequencies(self) -> Tensor:
        return self.omega

    def basis(self) -> Tensor:
        return self.generator.basis()

    def generators(self) -> Tensor:
        return self.all_heads(self.generator.conjugate(plane_generators(self.omega, self.head_dim)))
