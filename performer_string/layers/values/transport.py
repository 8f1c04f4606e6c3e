"""Values rotated by a position encoding R_V, which is not that of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from performer_string.layers.values.base import ValueMap, Weighted
from performer_string.ops.layout import TokenLayout
from performer_string.position import build_encoding
from performer_string.position.base import Sizes
from performer_string.utils.registry import check_reserved


class TransportedValues(ValueMap):
    """Base of value maps with an encoding R_V of the values.

    Args:
        sizes: sizes of the attention.
        encoding: name of a rotating encoding in `ENCODINGS`.
        encoding_options: options of that encoding.

    Raises:
        ValueError: an encoding that adds to tokens instead of rotating, or options that the layer itself gives.
    """

    counts_patches = True

    def __init__(
        self, sizes: Sizes, *, encoding: str = "rope-mixed", encoding_options: Mapping[str, Any] | None = None
    ):
        super().__init__(sizes)
        arguments: dict[str, Any] = {
            "head_dim": sizes.head_dim,
            "num_heads": sizes.num_heads,
            "coord_dim": sizes.coord_dim,
            "grid": sizes.grid,
            "layers": 1,
        }
        check_reserved("encoding_options of values", encoding_options)
        self.encoding = build_encoding(encoding, **arguments, **(encoding_options or {}))
        if self.encoding.additive:
            raise ValueError(
                f"values need an encoding that rotates them, which {encoding!r} does not: take 'rope-mixed'."
            )


class GroupAction(TransportedValues):
    """Outputs o_i = sum_j A_ij R_V(p_j) v_j, which depend on absolute positions by design."""

    def forward(self, attend: Weighted, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j A_ij R_V(p_j) v_j; arguments as those of `ValueMap`."""
        rotation = self.encoding(layout.centred_positions())
        return rotation.outer(attend(rotation.rotate(v)))


class Connection(TransportedValues):
    """Outputs o_i = sum_j A_ij R_V(p_i)^-1 R_V(p_j) v_j: values in the frame of the query.

    R_V(p_i)^-1 does not depend on j: values are rotated before the sum, and outputs are rotated back after it. Where
    the generators of the encoding commute, the product is R_V(p_j - p_i), and a translation of all tokens changes
    nothing.
    """

    def forward(self, attend: Weighted, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return sum_j A_ij R_V(p_i)^-1 R_V(p_j) v_j; arguments as those of `ValueMap`."""
        rotation = self.encoding(layout.centred_positions())
        return rotation.unrotate(attend(rotation.rotate(v)))
