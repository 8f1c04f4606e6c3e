"""Values turned by an encoding of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from performer_string.layers.values.base import Attention, ValueMap
from performer_string.ops.layout import TokenLayout
from performer_string.position import build_encoding
from performer_string.position.base import Sizes


class TransportedValues(ValueMap):
    """What both uses of R_V share: an encoding of its own, by name.

    Args:
        encoding: a name in `ENCODINGS` of an encoding that turns.
        encoding_options: of that encoding.
    """

    def __init__(
        self, sizes: Sizes, *, encoding: str = "rope-mixed", encoding_options: Mapping[str, Any] | None = None
    ):
        super().__init__(sizes)
        built: dict[str, Any] = {name: getattr(sizes, name) for name in ("head_dim", "num_heads", "coord_dim", "grid")}
        built["layers"] = 1
        options = dict(encoding_options or {})
        for name in built:
            if name in options:
                raise ValueError(f"encoding_options of values: {name} is that of the layer; leave it out.")
        self.encoding = build_encoding(encoding, **built, **options)
        if self.encoding.additive:
            raise ValueError(
                f"values need an encoding that turns them, which {encoding!r} does not: take 'rope-mixed'."
            )


class GroupAction(TransportedValues):
    """o_i = sum_j A_ij R_V(p_j) v_j: absolute by design, since a move of all tokens turns every output."""

    def forward(self, attend: Attention, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        rotation = self.encoding(layout.centred_positions())
        return rotation.outer(attend(rotation.rotate(v)))


class Connection(TransportedValues):
    """o_i = sum_j A_ij R_V(p_i)^-1 R_V(p_j) v_j: values are brought to the place of the query.

    R_V(p_i)^-1 does not depend on j: values are turned before the sum, and outputs are turned back after it. For an
    encoding whose generators commute the product is R_V(p_j - p_i), and a common move of all tokens changes nothing.
    """

    def forward(self, attend: Attention, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        rotation = self.encoding(layout.centred_positions())
        return rotation.unrotate(attend(rotation.rotate(v)))
