"""Checks of the arguments of the public functions of attention, and the context that they become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from performer_string.ops.context import AttentionContext
from performer_string.ops.layout import TokenLayout
from performer_string.ops.packing import packed_lengths
from performer_string.ops.validation import check_attention, check_locality, check_places

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias
    from performer_string.position.rotation import Rotation


def checked_context(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation | None,
    locality: RelativeBias | None,
    positions: Tensor | None,
    num_prefix: int,
    key_mask: Tensor | None,
    key_bias: Tensor | None,
    cu_seqlens: Tensor | None,
) -> AttentionContext:
    """Return the context of attention from the arguments of `linear_attention` or `softmax_attention`.

    Raises:
        TypeError, ValueError: arguments that do not fit together.
    """
    check_attention(q, k, v, rotation, key_mask, key_bias)
    check_places(k, positions, num_prefix, locality is not None or rotation is not None)
    if locality is not None:
        check_locality(locality, q, k, positions)
    lengths = packed_lengths(cu_seqlens, q, k, key_mask)
    layout = TokenLayout(positions, None, num_prefix, key_mask, lengths=lengths)
    return AttentionContext(rotation, locality, layout, key_bias)
