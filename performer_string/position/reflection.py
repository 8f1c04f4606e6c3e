"""Reflection-STRING: two Householder reflections a plane, whose angles are linear in the position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from performer_string.position.base import SeparableEncoding, Sizes
from performer_string.position.cayley import build_generator
from performer_string.position.frequencies import mixed_frequencies, plane_generators, planes_of
from performer_string.utils.dtype import full_precision


class ReflectionSTRING(SeparableEncoding):
    """R(r) turns plane p by H(a2) H(a1) = Rot(2 (a2 - a1)), where a_i = w_i r and H(a) reflects across the line at
    angle a: two learned frequencies where one, 2 (w2 - w1), is all that the scores see.

    `reference.reflections` is the product of the two Householder matrices.

    Args:
        cayley: turn the planes in a learned basis, the Cayley transform of a dense skew-symmetric matrix.
        base: the initial 2 (w2 - w1) are the frequencies of RoPE-Mixed with this base.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        cayley: bool = False,
        base: float = 10.0,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        planes = planes_of(sizes.head_dim, "reflection-string")
        omega = mixed_frequencies(self.parameter_heads, planes, sizes.coord_dim, base)
        self.mirrors = nn.Parameter(torch.stack([-omega / 4, omega / 4]))  # w1 and w2, [2, H, C, P]
        self.generator = build_generator("dense", self.parameter_heads, sizes.head_dim, 0.02, {}) if cayley else None

    def frequencies(self) -> Tensor:
        first, second = full_precision(self.mirrors).unbind(0)
        return 2 * (second - first)

    def basis(self) -> Tensor | None:
        return None if self.generator is None else self.generator.basis()

    def generators(self) -> Tensor:
        planes = plane_generators(self.frequencies(), self.head_dim)
        return self.all_heads(planes if self.generator is None else self.generator.conjugate(planes))
