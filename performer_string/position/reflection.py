"""Reflection-STRING: two Householder reflections in each plane, whose angles are linear in the position."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from performer_string.position.base import Sizes
from performer_string.position.cayley import build_generator
from performer_string.position.frequencies import mixed_frequencies, num_planes, plane_generators
from performer_string.position.separable import SeparableEncoding
from performer_string.position.skew import SkewGenerator
from performer_string.utils.dtype import full_precision


class ReflectionSTRING(SeparableEncoding):
    """Reflection-STRING, which rotates each plane by H(a2) H(a1) = Rot(2 (a2 - a1)) with a_i = w_i r.

    H(a) reflects across the line at angle a. Both frequencies w_1 and w_2 are learned, and scores depend on
    2 (w_2 - w_1) alone. The reference form in `ops` is the product of the two Householder matrices. Source: the notes
    "Positional Encodings and ViT Attention - Key Equations", section 4, not published. Its H(a) reflects across the
    line at a + pi / 2, which changes no product of two.

    Args:
        sizes: sizes of the attention that the encoding serves.
        cayley: learned basis of the planes, the Cayley transform of a skew-symmetric matrix: the name of its generator,
            see `cayley-string`, or True for `dense`; False for no basis.
        bandwidth: bandwidth of `banded`; this and the next three options are those of `cayley-string`.
        k: number of entries of `top-k` and `top-k-of-matrix`.
        fraction: fraction of the entries that `random` learns.
        both_triangles: whether `dense` and `banded` learn both triangles.
        base: base of the initial frequencies 2 (w_2 - w_1), which are those of RoPE-Mixed.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: an odd head width, a base that is not positive, or an option that is unknown or out of range.
    """

    without_effect: ClassVar = dict.fromkeys(("bandwidth", "k", "fraction", "both_triangles"), ("cayley", (False,)))

    def __init__(
        self,
        sizes: Sizes,
        *,
        cayley: bool | str = False,
        bandwidth: int | None = None,
        k: int | None = None,
        fraction: float | None = None,
        both_triangles: bool = False,
        base: float = 10.0,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        planes = num_planes(sizes.head_dim, "reflection-string")
        omega = mixed_frequencies(self.parameter_heads, planes, sizes.coord_dim, base)
        self.mirrors = nn.Parameter(torch.stack([-omega / 4, omega / 4]))  # w_1 and w_2, [2, H, C, P]
        self.generator: SkewGenerator | None = None
        if cayley is not False:
            name = "dense" if cayley is True else cayley
            options = {"bandwidth": bandwidth, "k": k, "fraction": fraction, "both_triangles": both_triangles}
            self.generator = build_generator(name, self.parameter_heads, sizes.head_dim, 0.02, options)

    def frequencies(self) -> Tensor:
        """Return 2 (w_2 - w_1), [parameter_heads, C, P], in radians per patch."""
        first, second = full_precision(self.mirrors).unbind(0)
        return 2 * (second - first)

    def basis(self) -> Tensor | None:
        """Return the learned basis, [parameter_heads, d, d], or None."""
        return None if self.generator is None else self.generator.basis()

    def generators(self) -> Tensor:
        """Return the plane generators, in the learned basis if there is one, [layers H, C, d, d]."""
        first, second = self.mirrors  # two mirrors at an angle turn by twice that angle
        planes = plane_generators(2 * second - 2 * first, self.head_dim)
        return self.all_heads(planes if self.generator is None else self.generator.conjugate(planes))
