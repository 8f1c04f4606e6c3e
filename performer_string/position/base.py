"""The contract of every position encoding."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from performer_string.ops.validation import check_positions
from performer_string.position.grid import check_grid
from performer_string.position.rotation import PlaneRotation, Rotation
from performer_string.utils._compat import values_unavailable
from performer_string.utils.buffers import ComputedBuffers
from performer_string.utils.validation import check_sizes


@dataclass(frozen=True)
class Sizes:
    """Sizes of the attention that an encoding serves.

    Attributes:
        head_dim: width d of a head.
        num_heads: number H of heads of a layer.
        coord_dim: dimension C of the positions.
        grid: number of cells of the training grid along each axis, or None.
        layers: number of layers served, each with separate generators.
        qk_dim: width of queries and keys where it is not d; None for d. Rotating encodings are built with it as
            `head_dim`. For additive encodings and value maps d is the width of the values, and H d that of the tokens.
    """

    head_dim: int
    num_heads: int
    coord_dim: int = 2
    grid: tuple[int, ...] | None = None
    layers: int = 1
    qk_dim: int | None = None

    def __post_init__(self) -> None:
        check_sizes(head_dim=self.head_dim, num_heads=self.num_heads, coord_dim=self.coord_dim, layers=self.layers)
        if self.grid is not None:
            check_grid("grid", self.grid)
            if len(self.grid) != self.coord_dim:
                raise ValueError(f"the training grid {self.grid} does not have coord_dim={self.coord_dim} axes.")

    def parameter_heads(self, share_heads: bool) -> int:
        """Return the number of heads with parameters, over all layers: one per layer if the heads share them."""
        return self.layers * (1 if share_heads else self.num_heads)


class HeadWidthError(ValueError):
    """Error for a head width that an encoding cannot rotate."""


def resolve_block_size(family: str, head_dim: int, block_size: int | None, smallest: int) -> int:
    """Return the block size, by default the whole head width.

    Args:
        family: name of the encoding, for the message.
        head_dim: width d of a head.
        block_size: size b of a block, or None for d.
        smallest: smallest size that the encoding can rotate.

    Raises:
        HeadWidthError: a size out of range or one that does not divide d. The message lists the possible sizes.
    """
    b = head_dim if block_size is None else block_size
    if not smallest <= b <= head_dim or head_dim % b:
        possible = [n for n in range(smallest, head_dim + 1) if head_dim % n == 0]
        raise HeadWidthError(
            f"{family}: block_size must divide the head width {head_dim} and lie between {smallest} and it, not {b}. "
            f"Possible: {', '.join(map(str, possible)) or 'none; use a wider head'}."
        )
    return b


class Encoding(ComputedBuffers):
    """Position encoding: a map from positions [..., N, C] to the rotation of each head's queries and keys.

    One encoding can serve several layers. Its heads are then those of all layers, in order, and are computed at once.
    `by_layer` returns the rotation of each layer.

    Args:
        sizes: sizes of the attention that the encoding serves.

    Attributes:
        additive: whether the encoding is a vector that is added to the tokens at the entry of the model. One instance
            then serves all layers.
        extrapolates: whether the encoding is defined outside the training grid. Otherwise the model interpolates
            positions into that grid.
        counts_patches: whether positions must be in patches, and not in another unit.
        without_effect: options that have no effect with some values of another option: {option: (other option, its
            values)}.
    """

    additive = False
    extrapolates = True
    counts_patches = False
    without_effect: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]] = {}

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.head_dim, self.num_heads = sizes.head_dim, sizes.num_heads
        self.coord_dim, self.grid, self.layers = sizes.coord_dim, sizes.grid, sizes.layers
        self.qk_dim = sizes.qk_dim or sizes.head_dim

    @classmethod
    def unused_options(cls, options: Mapping[str, Any], coord_dim: int) -> dict[str, str]:
        """Return the options that have no effect, each with the setting that is the reason, as `start='uniform'`.

        Args:
            options: options of the encoding, by name.
            coord_dim: dimension C of the positions.
        """
        parameters, unused = inspect.signature(cls).parameters, {}
        for option, (other, values) in cls.without_effect.items():
            if option in options and other in parameters:
                value = options.get(other, parameters[other].default)
                if value in values:
                    unused[option] = f"{other}={value!r}"
        return unused

    def check(self, positions: Tensor) -> Tensor:
        """Check positions and, in evaluation mode on a CPU, parameters.

        Elsewhere parameters are not read, which would wait for a GPU at every call. The trainer checks the loss.

        Args:
            positions: positions of the tokens, [..., N, C].

        Returns:
            The positions, unchanged.

        Raises:
            TypeError: positions that are no tensor.
            ValueError: positions of another dimension, or in 16 bits; on a CPU, positions or a parameter that are not
                finite.
        """
        check_positions(positions)
        if positions.ndim < 2 or positions.shape[-1] != self.coord_dim:
            remedy = "Build it with another coord_dim, or pass positions with one column an axis."
            if positions.ndim == self.coord_dim == 1:
                remedy = "Pass positions[:, None]."
            raise ValueError(
                f"{type(self).__name__} was built for positions [..., N, {self.coord_dim}] (coord_dim="
                f"{self.coord_dim}), not for {list(positions.shape)}. {remedy}"
            )
        if not positions.is_meta:
            self.fill_buffers(positions.device)
        if not self.training and not values_unavailable():
            self.check_finite()
        return positions

    def check_finite(self) -> None:
        """Check that every parameter on a CPU is finite.

        Raises:
            ValueError: a parameter that is not finite. The message names its first such entry.
        """
        for name, parameter in self.named_parameters():
            if parameter.device.type == "cpu" and not torch.isfinite(parameter).all():
                index = (~torch.isfinite(parameter)).nonzero()[0].tolist()
                raise ValueError(
                    f"{type(self).__name__}: the generators must be finite numbers, but {name}{index} is "
                    f"{parameter[tuple(index)].item()}. Did the training diverge? Load an earlier checkpoint, "
                    f"and train with a lower learning rate or with gradient clipping."
                )

    def forward(self, positions: Tensor) -> Rotation:
        """Return the rotation at positions [..., N, C]. The default is the identity, for additive encodings."""
        dtype = torch.promote_types(positions.dtype, torch.float32)
        angles = self.check(positions).new_zeros(*positions.shape[:-2], 1, positions.shape[-2], 0, dtype=dtype)
        rotation = PlaneRotation(angles, angles, self.qk_dim)
        if type(self).embedding is not Encoding.embedding:
            rotation.added = type(self).__name__
        return rotation

    def by_layer(self, positions: Tensor) -> Sequence[Rotation]:
        """Return the rotation of each layer served, at positions [..., N, C]."""
        rotation = self.forward(positions)  # hooks of tools that list sizes, such as torchinfo, know tensors alone
        return [rotation] if self.layers == 1 else rotation.split(self.layers)

    def embedding(self, positions: Tensor) -> Tensor | None:
        """Return the vectors that are added to the tokens at the entry of the model, [..., N, H d], or None."""
        return None

    def generators(self) -> Tensor:
        """Return the generators L_k of R(r) = exp(sum_k r_k L_k), computed from their definition.

        Tests compare them with the frequencies and the basis, with which they share parameters alone.

        Returns:
            Skew-symmetric matrices, [layers H, C, d, d].

        Raises:
            NotImplementedError: an encoding that rotates and does not override this method.
        """
        if not self.additive:
            raise NotImplementedError(f"{type(self).__name__} rotates queries and keys, but has no generators().")
        return torch.zeros(self.layers * self.num_heads, self.coord_dim, self.head_dim, self.head_dim)

    def tell_layers_apart(self, x: Tensor, dim: int) -> Tensor:
        """Return x with the entries of each layer repeated for its heads, where layers could be taken for heads.

        Heads that share parameters have one entry per layer. If there are as many layers as heads, these entries could
        pass for the heads of one layer, and the rotation of all layers could be given to one of them unnoticed.
        """
        ambiguous = self.layers == self.num_heads > 1 and x.shape[dim] == self.layers
        return x.repeat_interleave(self.num_heads, dim) if ambiguous else x

    def all_heads(self, x: Tensor) -> Tensor:
        """Return parameters [parameter heads, ...] repeated for the heads that share them, [layers H, ...]."""
        return x.repeat_interleave(self.layers * self.num_heads // len(x), dim=0)

    def extra_repr(self) -> str:
        """Return the sizes, for `repr`."""
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, coord_dim={self.coord_dim}"
