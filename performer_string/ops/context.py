"""Inputs of attention besides queries, keys and values, as one argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias
    from performer_string.ops.layout import TokenLayout
    from performer_string.position.rotation import Rotation


@dataclass(frozen=True)
class AttentionContext:
    """Inputs of attention besides queries, keys and values.

    Attributes:
        rotation: rotation of queries and keys; None for the identity.
        locality: relative bias, which attenuates values by distance; it needs the positions in `layout`.
        layout: layout of the tokens: positions, prefix, and the mask of those that take part, or lengths of packed
            sequences.
        key_bias: bias of the logits of each key, [B, H, N].
    """

    rotation: Rotation | None
    locality: RelativeBias | None
    layout: TokenLayout  # without a default, which torch 2.11 cannot compile
    key_bias: Tensor | None = None
