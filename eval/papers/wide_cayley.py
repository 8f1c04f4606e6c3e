"""A control: a Cayley matrix of the model's whole width after the rotation, before the heads are split.

"Positional Encodings and ViT Attention - Key Equations", section 3.3, writes Cayley-STRING in this way. It has
q' = U RoPE(q) with U = (I - S)(I + S)^-1 of the width D of all heads. U mixes the heads, so that it does not cancel in
the scores of a head, and these depend on absolute positions. The library's own encodings rotate head by head, so it is
not one of them. Importing this module adds it, as `--imports eval.papers.wide_cayley` does.

The D / 2 planes are split among the heads in order, d / 2 for each. The source does not state their frequencies. Here
they are those of axial RoPE with a head of the width D, in descending order.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from performer_string import ENCODINGS, Encoding
from performer_string.position.base import Sizes
from performer_string.position.frequencies import num_planes
from performer_string.position.rope import RoPE
from performer_string.position.rotation import PlaneRotation, Rotation, split_heads
from performer_string.position.skew import DenseGenerator
from performer_string.utils.dtype import without_autocast


class WideRotation(Rotation):
    """Rotation of the planes of each head, followed by U of the whole width D = H d, for queries and keys.

    Args:
        planes: rotation of the planes of each head.
        mixing: matrix U of each layer, [layers, D, D].
        heads: number of heads H.
    """

    def __init__(self, planes: Rotation, mixing: Tensor, heads: int):
        self.planes, self.mixing, self.heads = planes, mixing, heads

    def multiply(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Multiply x [B, H, N, d], with the heads of a token concatenated, by a matrix [1, D, D]."""
        rows = x.transpose(1, 2).flatten(2).to(matrix.dtype)  # [B, N, D]
        with without_autocast(x):
            return (rows @ matrix).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def check(self, x: Tensor) -> None:
        """Raise a ValueError unless x [B, H, N, d] matches the tokens and heads of this rotation."""
        if x.shape[1] != self.heads:
            raise ValueError(f"the rotation is of {self.heads} heads, and not of {x.shape[1]}.")
        self.planes.check(x)

    def rotate(self, x: Tensor) -> Tensor:
        """Return U Rot(theta) x of all heads together, [B, H, N, d]."""
        return self.multiply(self.planes.rotate(x), self.mixing.mT).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """Return Rot(-theta) U^T x of all heads together, [B, H, N, d]."""
        return self.planes.unrotate(self.multiply(x, self.mixing)).to(x.dtype)

    def matrix(self) -> Tensor:
        """Raise an error, since there is no separate matrix for each head."""
        raise NotImplementedError("a Cayley matrix of the whole width mixes the heads, which have no matrix each.")

    def split(self, count: int) -> list[Rotation]:
        """Return the rotation of each layer."""
        parts = zip(self.planes.split(count), split_heads(self.mixing, count, 0), strict=True)
        return [WideRotation(planes, mixing, self.heads) for planes, mixing in parts]


class WideCayley(Encoding):
    """RoPE over the whole width D = H d, followed by a learned Cayley matrix U of that width for each layer.

    Scores are translation invariant only if U is the identity. It is a control, and no STRING encoding.

    Args:
        sizes: sizes of the attention that uses the encoding.
        base: base of the frequencies.
        init_std: standard deviation of the initial entries of S; with 0 the encoding starts as RoPE.

    Raises:
        ValueError: an odd head dimension.
    """

    def __init__(self, sizes: Sizes, *, base: float = 100.0, init_std: float = 0.02):
        super().__init__(sizes)
        num_planes(sizes.head_dim, "wide-cayley")
        self.layers, width = sizes.layers, sizes.num_heads * sizes.head_dim
        self.rope = RoPE(replace(sizes, head_dim=width, qk_dim=None, num_heads=1, layers=1), base=base)
        self.generator = DenseGenerator(sizes.layers, width, init_std)

    def planes(self, positions: Tensor) -> Rotation:
        """Return the rotation of the planes of all heads and layers at positions [..., N, C], in patches."""
        whole = self.rope(positions)
        order = self.rope.omega[0].sum(0).argsort(descending=True, stable=True)  # axes alternate
        cos, sin = (
            each.squeeze(-3)[..., order].unflatten(-1, (self.num_heads, -1)).movedim(-2, -3) for each in whole.planar()
        )  # [..., 1, N, D / 2] -> [..., H, N, d / 2]
        repeats = (*[1] * (cos.ndim - 3), self.layers, 1, 1)
        return PlaneRotation(cos.repeat(repeats), sin.repeat(repeats), self.head_dim)

    def forward(self, positions: Tensor) -> Rotation:
        """Return the rotation at positions [..., N, C], in patches."""
        self.check(positions)
        with torch.autocast(positions.device.type, enabled=False):
            return WideRotation(self.planes(positions), self.generator.basis(), self.num_heads)


ENCODINGS["wide-cayley"] = WideCayley
