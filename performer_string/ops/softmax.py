"""Exact softmax attention under a rotation of queries and keys.

Shapes: queries, keys and values [B, H, N, d]; a key mask [B, N] of booleans, True for keys to attend to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from performer_string.ops.decayed_softmax import attend_with_columns, decay_columns
from performer_string.ops.fused_softmax import fused_softmax
from performer_string.ops.key_bias import key_logits
from performer_string.ops.layout import AttentionContext, TokenLayout
from performer_string.ops.packing import attend_packed, packed_lengths
from performer_string.ops.rotary import rotate_pair
from performer_string.ops.validation import check_attention, check_context
from performer_string.utils.dtype import without_autocast
from performer_string.utils.validation import check_positive

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias
    from performer_string.position.rotation import Rotation


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotation: Rotation | None = None,
    locality: RelativeBias | None = None,
    positions: Tensor | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Exact softmax attention through torch's fused kernels.

        o_i = sum_j softmax_j(scale <R_i q_i, R_j k_j> + b_j) v_j

    These have first derivatives only. For second ones call it within `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.

    Args:
        q, k: queries and keys, [B, H, N, d]. Each token attends to all others; there is no causal form.
        v: values, [B, H, N, e].
        rotation: rotation R from an encoding; None for the identity. In cross attention rotate queries and keys
            beforehand, each by `rotate` of its rotation.
        locality: relative bias, which attenuates the values by distance after the softmax, or, if normalised, is a bias
            of the logits. All N x N weights are then held, unless it is a Gaussian of more than 256 tokens.
        positions: positions of the tokens, [N, C], for the relative bias alone: the rotation contains them already.
        num_prefix: number of leading tokens without a position, for the relative bias.
        key_mask: mask of the keys, [B, N], True for keys to attend to. The output of a sample without keys is zero.
        key_bias: bias b of the keys, [B, H, N], finite, added to the logits of each key.
        scale: scale of the logits; None for d^-1/2.
        cu_seqlens: boundaries of packed sequences, see `linear_attention`.

    Returns:
        Outputs, [B, H, N, e] in the type of v.

    Raises:
        TypeError, ValueError: arguments that do not fit together.
    """
    check_attention(q, k, v, key_mask, key_bias)
    lengths = packed_lengths(cu_seqlens, q, k)
    layout = TokenLayout(positions, num_prefix=num_prefix, mask=key_mask, lengths=lengths)
    context = AttentionContext(rotation, locality, layout, key_bias)
    check_context(context, q, k)
    if scale is not None:
        check_positive("the scale of the logits", scale)
    return attend_softmax(q, k, v, context, scale)


def attend_softmax(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float | None = None) -> Tensor:
    """Compute `softmax_attention` without its checks, for layers.

    Args:
        q, k, v, scale: see `softmax_attention`.
        context: rotation, locality, layout of the tokens and bias of the keys.

    Returns:
        Outputs, [B, H, N, e] in the type of v.
    """
    locality, layout, key_bias = context.locality, context.layout, context.key_bias
    if layout.lengths is not None:
        return attend_packed(lambda q, k, v, part: attend_softmax(q, k, v, part, scale), q, k, v, context)
    q, k = rotate_pair(q, k, context.rotation)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    key_mask = layout.mask
    if key_bias is not None:
        key_bias = key_logits(key_bias, key_mask)
    if locality is not None:
        return _softmax_with_bias(q, k, v, scale, locality, layout, key_bias)
    out_dtype = v.dtype
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), out_dtype)  # torch's kernels take one type
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    out = fused_softmax(q, k, v, scale, key_mask, key_bias)
    return out.to(out_dtype)


def _softmax_with_bias(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    locality: RelativeBias,
    layout: TokenLayout,
    key_bias: Tensor | None,
) -> Tensor:
    """Softmax attention with a relative bias, in float32 or better.

    All weights [B, H, N, N] are held, unless the logarithm of the bias is an inner product (`decay_columns`).

    Args:
        q, k, v: rotated queries, rotated keys and values, [B, H, N, d].
        scale: scale of the logits.
        locality: relative bias, which attenuates the values, or, if normalised, is a bias of the logits.
        layout: positions of the tokens, prefix and mask of the keys.
        key_bias: bias of the keys from `key_logits`, [B, H, N], or None.

    Returns:
        Outputs, [B, H, N, d] in the type of v.
    """
    dtype, key_mask = torch.promote_types(q.dtype, torch.float32), layout.mask
    assert layout.positions is not None
    with without_autocast(q):
        q, k = q.to(dtype) * scale, k.to(dtype)
        columns = decay_columns(q, locality, layout)
        if columns is not None:
            out = attend_with_columns(q, k, v.to(dtype), columns, locality.normalised, key_mask, key_bias)
            return out.to(v.dtype)
        logits = q @ k.mT
        if locality.normalised:
            logits = logits + locality.log_matrix(layout.positions, layout.num_prefix).to(dtype)
        if key_bias is not None:
            logits = logits + key_bias[:, :, None].to(dtype)
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask[:, None, None], -torch.inf)
        no_keys = None
        if key_mask is not None or locality.normalised:
            no_keys = (logits == -torch.inf).all(-1, keepdim=True)  # all keys are masked, or have no weight by the bias
            logits = logits.masked_fill(no_keys, 0.0)
        weights = logits.softmax(-1)
        if not locality.normalised:
            weights = weights * locality.matrix(layout.positions, layout.num_prefix).to(dtype)
        out = weights @ v.to(dtype)
        return (out if no_keys is None else out.masked_fill(no_keys, 0.0)).to(v.dtype)
