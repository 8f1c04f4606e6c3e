"""Sequences of several lengths, packed along the axis of tokens: attention within each of them, and no padding.

Queries, keys and values are [1, H, N, d] with the N tokens of all sequences. Projections, norms and MLPs take them as
they are. Attention is computed for the sequences of each length, as one batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from performer_string.ops.layout import AttentionContext, Grid, TokenLayout
from performer_string.ops.rotary import rotate_pair

# q, k, v [B, H, n, d] of B sequences of n tokens, and their context without a rotation -> [B, H, n, d].
SequenceAttention = Callable[[Tensor, Tensor, Tensor, AttentionContext], Tensor]


def packed_lengths(cu_seqlens: Tensor | None, q: Tensor, k: Tensor) -> tuple[int, ...] | None:
    """Return the number of tokens of each packed sequence.

    Args:
        cu_seqlens: boundaries of the sequences, [0, n_1, n_1 + n_2, .., N], integers that do not decrease; None for no
            packing.
        q, k: queries and keys, [1, H, N, d].

    Returns:
        n_1, n_2, ..; None without packing.

    Raises:
        TypeError: `cu_seqlens` that is no tensor of integers.
        ValueError: `cu_seqlens` that does not fit the tokens.
    """
    if cu_seqlens is None:
        return None
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.is_floating_point() or cu_seqlens.dtype == torch.bool:
        found = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise TypeError(f"cu_seqlens must be a tensor of integers, as torch.int32, not {found}.")
    if q.shape[0] != 1 or q.shape[2] != k.shape[2]:
        raise ValueError(
            f"packed sequences are one batch [1, H, N, d], with queries and keys of the same tokens, not "
            f"{list(q.shape)} and {list(k.shape)}."
        )
    ends = cu_seqlens.tolist() if cu_seqlens.ndim == 1 else []
    lengths = tuple(end - start for start, end in itertools.pairwise(ends))
    if not ends or ends[0] != 0 or ends[-1] != q.shape[2] or min(lengths, default=0) < 0:
        raise ValueError(
            f"cu_seqlens must be [0, n_1, n_1 + n_2, .., N] with N = {q.shape[2]} tokens, and not to decrease; got "
            f"{cu_seqlens.tolist()}."
        )
    return lengths


def attend_packed(attend: SequenceAttention, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
    """Return the outputs of attention within each packed sequence.

    With a relative bias, which depends on positions, sequences share a batch only if their grids are known and equal.

    Args:
        attend: function that computes attention of a batch of sequences of one length.
        q, k: queries and keys, [1, H, N, d].
        v: values, [1, H, N, d_v].
        context: rotation, locality, layout of the tokens with the lengths, and bias of the keys.

    Returns:
        Outputs, [1, H, N, d_v] in the type of v. An empty sequence has no outputs.

    Raises:
        ValueError: a batch of more than one, or lengths that are not those of all tokens.
    """
    layout, key_bias, by_position = context.layout, context.key_bias, context.locality is not None
    assert layout.lengths is not None
    q, k = rotate_pair(q, k, context.rotation)
    layout.check_lengths(q.shape[0], q.shape[2])
    lengths, parts = list(layout.lengths), layout.parts()
    groups: dict[tuple[int, Grid | int | None], list[int]] = {}
    for i, (length, part) in enumerate(zip(lengths, parts, strict=True)):
        alike = (i if part.grid is None else part.grid) if by_position else None
        groups.setdefault((length, alike), []).append(i)
    sequences = [x.split(lengths, dim=2) for x in (q, k, v)]  # [1, H, n_i, d] each
    biases = None if key_bias is None else key_bias.split(lengths, dim=2)
    outputs: list[Tensor] = [v[:, :, :0]] * len(lengths)
    for (length, _), members in groups.items():
        if not length:
            continue
        own_q, own_k, own_v = (torch.cat([each[i] for i in members]) for each in sequences)  # [B, H, n, d]
        bias = None if biases is None else torch.cat([biases[i] for i in members])
        own = parts[members[0]] if by_position else TokenLayout()
        out = attend(own_q, own_k, own_v, AttentionContext(None, context.locality, own, bias))
        for i, each in zip(members, out.split(1), strict=True):
            outputs[i] = each
    return torch.cat(outputs, dim=2) if outputs else v[:, :, :0]
