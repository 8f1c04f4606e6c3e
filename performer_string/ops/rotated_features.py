"""Linear attention with a rotation of the features, instead of the queries and keys: the usual baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from performer_string.ops.key_bias import key_weights
from performer_string.ops.layout import AttentionContext, TokenLayout
from performer_string.ops.packing import attend_packed, packed_lengths
from performer_string.ops.rotary import rotate_pair
from performer_string.ops.validation import check_attention, check_feature_map
from performer_string.utils.dtype import in_one_type, without_autocast
from performer_string.utils.numerics import safe_divide

if TYPE_CHECKING:
    from performer_string.feature_maps import FeatureMap
    from performer_string.position.rotation import Rotation


def rotated_feature_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: FeatureMap,
    *,
    rotation: Rotation | None = None,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Linear attention with the rotation after the feature map.

        o_i = (R_i phi(q_i))^T sum_j R_j phi(k_j) v_j^T / phi(q_i)^T sum_j phi(k_j)

    Scores depend on r_j - r_i exactly, for any feature map and any draw. The weights may be negative, and do not sum to
    one: the denominator has no rotation, without which it could vanish. `linear_attention` rotates before the map.

    Features of all tokens are in memory, N x m numbers. There is no fused form.

    Args:
        q, k, v: queries, keys and values, [B, H, N, d].
        phi: feature map with m features.
        rotation: rotation R from an encoding with `head_dim` m; None for the identity.
        key_mask: mask of the keys, [B, N], True for keys to attend to.
        key_bias: bias b of the keys, [B, H, N], finite. Each product of features is multiplied by exp(b_j).
        cu_seqlens: boundaries of packed sequences, see `linear_attention`.

    Returns:
        Outputs, [B, H, N, d] in the type of v; zero where every key is masked.

    Raises:
        TypeError, ValueError: arguments that do not fit together.

    Source: RoFormer, arXiv:2104.09864, section 3.3, for any map with positive features.
    """
    check_attention(q, k, v, key_mask, key_bias)
    check_feature_map(phi, q)
    if rotation is not None:
        rotation.check(q.new_empty(()).expand(*q.shape[:-1], phi.num_features))
    layout = TokenLayout(mask=key_mask, lengths=packed_lengths(cu_seqlens, q, k))
    return attend_rotated_features(q, k, v, phi, AttentionContext(rotation, None, layout, key_bias))


def attend_rotated_features(q: Tensor, k: Tensor, v: Tensor, phi: FeatureMap, context: AttentionContext) -> Tensor:
    """Compute `rotated_feature_attention` without its checks, for layers.

    Args:
        q, k, v, phi: see `rotated_feature_attention`.
        context: rotation, mask of the keys or lengths of packed sequences, and bias of the keys; no relative bias.

    Returns:
        Outputs, [B, H, N, d] in the type of v.
    """
    layout = context.layout
    with without_autocast(q):
        fq, fk = _features(q, k, phi, layout.mask)
        rotated_q, rotated_k = rotate_pair(fq, fk, context.rotation)
        both_q, both_k = torch.cat([rotated_q, fq], dim=-1), torch.cat([rotated_k, fk], dim=-1)
        if layout.lengths is None:
            return _attend(both_q, both_k, v, context)
        return attend_packed(_attend, both_q, both_k, v, AttentionContext(None, None, layout, context.key_bias))


def _features(q: Tensor, k: Tensor, phi: FeatureMap, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return features [B, H, N, m] up to a factor for each query and one for each head.

    A rotation mixes features, so that none may have a factor of its own, as in `FeatureMap.pair`.
    """
    q, k = in_one_type(q, k)
    if not k.shape[-2]:
        return phi.queries(q), phi.keys(k)
    masked = None if key_mask is None else ~key_mask[:, None, :, None]  # [B, 1, N, 1]
    scale = phi.key_scale(k, masked).amax(dim=-1, keepdim=True)  # [B, H, 1, 1]
    return phi.scaled_queries(q, scale), phi.scaled_keys(k, scale, masked)


def _attend(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
    """Return the outputs from features [B, H, N, 2 m]: the m rotated ones first, then those without a rotation."""
    if context.key_bias is not None and k.shape[-2]:
        k = k * key_weights(context.key_bias, context.layout.mask).to(k.dtype)
    (rotated_q, fq), (rotated_k, fk) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
    numerator = rotated_q @ (rotated_k.mT @ v.to(k.dtype))  # [B, H, N, m] [B, H, m, d]
    return safe_divide(numerator, fq @ fk.sum(dim=-2)[..., None]).to(v.dtype)
