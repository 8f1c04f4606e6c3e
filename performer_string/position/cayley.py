"""Cayley-STRING: rotary planes in a learned orthogonal basis, the Cayley transform of a skew-symmetric matrix."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from performer_string.position.base import Sizes
from performer_string.position.frequencies import axial_frequencies, mixed_frequencies, num_planes, plane_generators
from performer_string.position.separable import SeparableEncoding
from performer_string.position.skew import BlockDiagonalGenerator, DenseGenerator, SkewGenerator
from performer_string.position.sparse_skew import BandedGenerator, RandomGenerator, TopKGenerator, TopKOfMatrixGenerator
from performer_string.utils.registry import choose, construct, lookup

Frequencies = Literal["mixed", "axial"]


def build_generator(name: str, heads: int, head_dim: int, init_std: float, options: dict[str, Any]) -> SkewGenerator:
    """Return a learned skew-symmetric matrix by its name in `GENERATORS`.

    Args:
        name: name of the generator in `GENERATORS`.
        heads: number of matrices.
        head_dim: width d of a head.
        init_std: standard deviation of the initial entries.
        options: options of the generator, by name; None or False for the default.

    Raises:
        ValueError: an unknown name or option, or a value out of range.
    """
    kind = lookup("generator", name, GENERATORS)
    options = {option: value for option, value in options.items() if value is not None and value is not False}
    return construct("generator", name, kind, options, heads=heads, head_dim=head_dim, init_std=init_std)


GENERATORS: dict[str, type[SkewGenerator]] = {
    "dense": DenseGenerator,
    "block-diagonal": BlockDiagonalGenerator,
    "banded": BandedGenerator,
    "top-k": TopKGenerator,
    "top-k-of-matrix": TopKOfMatrixGenerator,
    "random": RandomGenerator,
}


class CayleySTRING(SeparableEncoding):
    """Cayley-STRING, R(r) = P Rot(Omega r) P^T with P = (I - S)(I + S)^-1 and S a learned skew-symmetric matrix.

    Source: Schenck et al., arXiv:2502.02562, section 3.2.

    Args:
        sizes: sizes of the attention that the encoding serves.
        generator: kind of S, by its learned entries: `dense`, `block-diagonal`, `banded`, `top-k`, `top-k-of-matrix` or
            `random`.
        bandwidth: largest j - i of the learned entries (i, j) of `banded`, 1 to d - 1; 2 by default.
        k: number of pairs of `top-k`, 1 to d (d - 1) / 2, or of single entries of `top-k-of-matrix`, 1 to d (d - 1); 24
            by default.
        fraction: fraction of the entries that `random` learns, in (0, 1]; 0.3 by default.
        both_triangles: whether `dense` and `banded` learn every entry of A with S = A - A^T, as in the sources.
        frequencies: kind of frequencies: `mixed` as in RoPE-Mixed, or `axial` as in axial RoPE.
        learn_frequencies: whether Omega is learned.
        base: base of the initial frequencies; 10 for mixed and 100 for axial by default.
        init_std: standard deviation of the initial entries of S; with 0 the encoding starts as RoPE.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: an odd head width (except for `block-diagonal`), or an option that is unknown or out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        generator: str = "dense",
        bandwidth: int | None = None,
        k: int | None = None,
        fraction: float | None = None,
        both_triangles: bool = False,
        frequencies: Frequencies = "mixed",
        learn_frequencies: bool = True,
        base: float | None = None,
        init_std: float = 0.02,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        # Only 2 x 2 blocks have a meaning at an odd width: the last dimension is not rotated.
        planes = sizes.head_dim // 2 if generator == "block-diagonal" else num_planes(sizes.head_dim, "cayley-string")
        choose("frequencies of cayley-string", frequencies, Frequencies)
        if frequencies == "mixed":
            omega = mixed_frequencies(self.parameter_heads, planes, sizes.coord_dim, 10.0 if base is None else base)
        else:
            omega = axial_frequencies(planes, sizes.coord_dim, 100.0 if base is None else base)
            omega = omega.repeat(self.parameter_heads, 1, 1)
        self.omega = nn.Parameter(omega, requires_grad=learn_frequencies)
        options = {"bandwidth": bandwidth, "k": k, "fraction": fraction, "both_triangles": both_triangles}
        self.generator = build_generator(generator, self.parameter_heads, sizes.head_dim, init_std, options)

    def frequencies(self) -> Tensor:
        """Return Omega, [parameter_heads, C, P], in radians per patch."""
        return self.omega

    def basis(self) -> Tensor:
        """Return P, [parameter_heads, d, d]."""
        return self.generator.basis()

    def generators(self) -> Tensor:
        """Return L_k = P G_k P^-1 with G_k the plane generators, [layers H, C, d, d]."""
        return self.all_heads(self.generator.conjugate(plane_generators(self.omega, self.head_dim)))
