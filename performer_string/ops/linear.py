"""Linear attention under a rotation of queries and keys: one function, and its implementations by map and device.

Shapes: queries and keys [B, H, N, d]; values [B, H, N, e]; a key mask [B, N] of booleans, True for keys to attend to.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from performer_string.ops.chunked import chunked_attention
from performer_string.ops.forms import FeatureForm, PolynomialKernel
from performer_string.ops.key_bias import key_logits, key_weights
from performer_string.ops.layout import AttentionContext, TokenLayout
from performer_string.ops.packing import attend_packed, packed_lengths
from performer_string.ops.polynomial import is_linear_cheaper_on_gpu, summed_attention
from performer_string.ops.rotary import rotate_pair
from performer_string.ops.validation import check_attention, check_context, check_feature_map
from performer_string.utils._compat import needs_plain_operations
from performer_string.utils.dtype import full_precision, in_one_type, without_autocast
from performer_string.utils.numerics import safe_divide

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias
    from performer_string.feature_maps import FeatureMap
    from performer_string.position.rotation import Rotation

log = logging.getLogger(__name__)

# Log of the least weight of a key, over that of the smallest number: exp(-50) in float32, exp(-400) in float64.
LEAST_SHARE = 0.57


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: FeatureMap,
    *,
    rotation: Rotation | None = None,
    locality: RelativeBias | None = None,
    positions: Tensor | None = None,
    num_prefix: int = 0,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention in time linear in N.

        o_i = phi(R_i q_i)^T sum_j phi(R_j k_j) v_j^T / phi(R_i q_i)^T sum_j phi(R_j k_j)

    R_i x is `rotation.rotate(x)` here: R(r_i) x up to an orthogonal factor on the left that all tokens share. Random
    features of it are those of R(r_i) x with another draw of W.

    Features, sums and denominator are float32 or better, whatever the input and autocast. Triton kernels for 16 bits
    round queries, keys and projections to the type of the input before they multiply them, and sum in float32. The
    output of a query is zero where every key is masked, or every product of features is zero. Products of a user's own
    map may be negative.

    Args:
        q, k: queries and keys, [B, H, N, d]. Each token attends to all others; there is no causal form.
        v: values, [B, H, N, e]. Queries and keys may be narrower than values, which makes features cheaper.
        phi: feature map, which contains the scale of the logits.
        rotation: rotation R from an encoding; None for the identity. In cross attention rotate queries and keys
            beforehand, each by `rotate` of its rotation.
        locality: relative bias, which attenuates the values by distance and, if it is normalised, the denominator too.
            For more than 256 tokens the sum of a wide decay is approximate: off by some 3 %, see `DistanceDecay`.
        positions: positions of the tokens, [N, C], for the relative bias alone: the rotation contains them already.
            Decays take time linear in N on a regular grid.
        num_prefix: number of leading tokens without a position, for the relative bias.
        key_mask: mask of the keys, [B, N], True for keys to attend to. All other tokens, and their positions, must be
            finite too.
        key_bias: bias b of the keys, [B, H, N], finite. Each product of features is multiplied by exp(b_j), as if b_j
            were added to a logit. With a normalised relative bias, b is raised to at least 50 below the largest of its
            head (400 in float64). Under a transform of `torch.func` and in an export `favor+` loses keys whose features
            are below 1e-27 of the largest (1e-215 in float64), whatever their bias.
        cu_seqlens: boundaries of sequences that are packed into a batch of one, [0, n_1, n_1 + n_2, .., N].
            Tokens attend within their sequence. There is no key mask then.

    Returns:
        Outputs, [B, H, N, e] in the type of v.

    Raises:
        TypeError, ValueError: arguments that do not fit together.

    Source: arXiv:2009.14794 (FAVOR+); arXiv:2502.02562 (rotations before the features).
    """
    check_attention(q, k, v, key_mask, key_bias)
    lengths = packed_lengths(cu_seqlens, q, k)
    layout = TokenLayout(positions, num_prefix=num_prefix, mask=key_mask, lengths=lengths)
    context = AttentionContext(rotation, locality, layout, key_bias)
    check_context(context, q, k)
    check_feature_map(phi, q)
    return attend_linear(q, k, v, phi, context)


def attend_linear(q: Tensor, k: Tensor, v: Tensor, phi: FeatureMap, context: AttentionContext) -> Tensor:
    """Compute `linear_attention` without its checks, for layers.

    | condition, the first that holds | implementation |
    | --- | --- |
    | no keys, or no samples | zeros, `_no_tokens` |
    | packed sequences | this function, for the sequences of each length |
    | a relative bias | `_with_bias`: it sums over the keys itself |
    | a transform of `torch.func`, or an export | `_with_features`: plain operations |
    | a map with a polynomial kernel | `_polynomial`: no features; Triton kernels on a GPU where these apply |
    | a map without a fused form | `_with_features` |
    | any other map | `_fused`: Triton kernels on a GPU where these apply, otherwise chunks |

    Args:
        q, k, v, phi: see `linear_attention`.
        context: rotation, locality, layout of the tokens and bias of the keys.

    Returns:
        Outputs, [B, H, N, e] in the type of v.
    """
    if not k.shape[-2] or not v.shape[0]:
        return _no_tokens(q, k, v, phi, context)
    if context.layout.lengths is not None:
        return attend_packed(lambda q, k, v, part: attend_linear(q, k, v, phi, part), q, k, v, context)
    if context.key_bias is not None and phi.degree:
        # The norm of a key is its weight, unless the degree is 0. The error of rounding it would grow with the degree.
        k = full_precision(k) * key_weights(context.key_bias, context.layout.mask, phi.degree)
        context = AttentionContext(context.rotation, context.locality, context.layout)
    if context.locality is not None:
        return _with_bias(q, k, v, phi, context.locality, context)
    if needs_plain_operations():
        return _with_features(q, k, v, phi, context)
    if (kernel := phi.polynomial_kernel()) is not None:
        return _polynomial(q, k, v, kernel, context)
    form = phi.form()
    return _with_features(q, k, v, phi, context) if form is None else _fused(q, k, v, form, context)


def _with_features(q: Tensor, k: Tensor, v: Tensor, phi: FeatureMap, context: AttentionContext) -> Tensor:
    """Linear attention by plain operations for any map, which hold the N x m features of all tokens."""
    q, k = in_one_type(*rotate_pair(q, k, context.rotation))
    with without_autocast(q):
        fq, fk = phi.pair(q, k, context.layout.mask)  # [B, H, N, m]
        if context.key_bias is not None:
            fk = fk * key_weights(context.key_bias, context.layout.mask).to(fk.dtype)
        numerator = fq @ (fk.mT @ v.to(fk.dtype))  # [B, H, N, m] [B, H, m, e]
        return safe_divide(numerator, fq @ fk.sum(dim=-2)[..., None]).to(v.dtype)


def _fused(q: Tensor, k: Tensor, v: Tensor, form: FeatureForm, context: AttentionContext) -> Tensor:
    """Linear attention without N x m features, by the Triton kernels where these apply, otherwise in chunks.

    On a GPU a warning says once per reason why the Triton kernels do not apply. Both give the same outputs up to
    rounding, unless keys of one head differ so much in norm that powers of the smaller norms leave float32.
    Chunks scale all keys by the largest norm, and Triton scales each feature by its largest value.

    Raises:
        ValueError: a bias of the keys with a map of one's own that has a power as its form, and no degree.
    """
    rotation, key_mask, key_bias = context.rotation, context.layout.mask, context.key_bias
    if rotation is not None:  # chunks and kernels do not check the number of angles
        rotation.check(q)
        rotation.check(k)
    planes = None if rotation is None else rotation.planar()
    if planes is None:
        q, k = rotate_pair(q, k, rotation)
    if key_bias is not None and form.kind == "power":
        raise ValueError("a bias of the keys needs the degree of a map whose form is a power: set it in its class.")
    bias = None if key_bias is None else key_logits(key_bias, key_mask)
    with without_autocast(q):
        if q.device.type == "cuda":
            from performer_string.ops.triton.device import warn_of_plain_operations
            from performer_string.ops.triton.features import triton_linear_attention, why_unsupported

            # The kernels take one type. Under autocast, `qk_norm` returns queries and keys in float32.
            inputs = (q.to(v.dtype), k.to(v.dtype), v, form)
            reason = why_unsupported(*inputs, *(planes or ()), key_mask, bias)
            if reason is None:
                return triton_linear_attention(*inputs, planes, key_mask, bias)
            warn_of_plain_operations(log, "linear attention runs in chunks of plain torch operations", reason)
        return chunked_attention(q, k, v, form, planes, key_mask, bias)


def _polynomial(q: Tensor, k: Tensor, v: Tensor, kernel: PolynomialKernel, context: AttentionContext) -> Tensor:
    """Linear attention with a polynomial kernel, without features, in the form that is predicted to be cheapest.

    On a GPU the N x N form is a Triton kernel. A warning says once per reason why that does not apply.
    """
    key_mask, key_bias = context.layout.mask, context.key_bias
    q, k = rotate_pair(q, k, context.rotation)
    with without_autocast(q):
        if q.device.type == "cuda":
            from performer_string.ops.triton.device import product_precision, warn_of_plain_operations
            from performer_string.ops.triton.square import triton_square_attention, why_square_unsupported

            inputs = (q.to(v.dtype), k.to(v.dtype), v)  # of one type, as in `_fused`
            reason = why_square_unsupported(*inputs, key_mask, key_bias)
            if reason is not None:
                warn_of_plain_operations(log, "polynomial attention runs in plain torch operations", reason)
            elif not is_linear_cheaper_on_gpu(*inputs, product_precision(v) == "ieee"):
                bias = None if key_bias is None else key_logits(key_bias, key_mask)
                return triton_square_attention(*inputs, kernel, key_mask, bias)
        return summed_attention(q, k, v, kernel, key_mask, key_bias)


def _with_bias(
    q: Tensor, k: Tensor, v: Tensor, phi: FeatureMap, locality: RelativeBias, context: AttentionContext
) -> Tensor:
    """Linear attention with a relative bias, which sums over the keys itself.

    A bias of the keys becomes weights w_j = exp(b_j) of the values, with one more column for the denominator:

        o_i = sum_j A_ij w_j v_j / sum_j A_ij w_j

    Where a relative bias is not normalised, the denominator is computed without it.
    """
    rotation, layout, key_bias = context.rotation, context.layout, context.key_bias
    (rotated_q, rotated_k), out_dtype = in_one_type(*rotate_pair(q, k, rotation)), v.dtype
    with without_autocast(q):
        if key_bias is None:
            return locality.attend(phi, rotated_q, rotated_k, v, layout).to(out_dtype)
        v = v.float() if v.dtype == torch.float16 else v  # small weights underflow in fp16
        # All keys in reach of a query may have small weights. A bound keeps a normalised denominator above zero.
        smallest = torch.finfo(full_precision(v).dtype).tiny
        least = LEAST_SHARE * math.log(smallest) if locality.normalised else -math.inf
        weights = key_weights(key_bias, layout.mask, least=least)
        if locality.normalised:
            columns = torch.cat([v * weights, weights], dim=-1).to(v.dtype)
            both = locality.attend(phi, rotated_q, rotated_k, columns, layout).to(v.dtype)
            return safe_divide(*both.split((v.shape[-1], 1), dim=-1)).to(out_dtype)
        weighted = (v * weights).to(v.dtype)
        numerator = locality.attend(phi, rotated_q, rotated_k, weighted, layout).to(v.dtype)
    denominator = attend_linear(q, k, weights.to(v.dtype), phi, AttentionContext(rotation, None, layout))
    return safe_divide(numerator, denominator).to(out_dtype)


def _no_tokens(q: Tensor, k: Tensor, v: Tensor, phi: FeatureMap, context: AttentionContext) -> Tensor:
    """Return zeros [B, H, N, e], with a gradient of zero for every input and parameter.

    Distributed training needs these gradients in a process without images.
    """
    inputs = [v, *rotate_pair(q, k, context.rotation), *phi.parameters()]
    inputs += [] if context.key_bias is None else [context.key_bias]
    inputs += [] if context.locality is None else context.locality.parameters()
    nothing = sum((x.flatten()[:0].sum().to(v.dtype) for x in inputs), v.new_zeros(()))
    return v.new_zeros(*q.shape[:-1], v.shape[-1]) + nothing
