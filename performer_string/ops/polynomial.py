"""Attention with the polynomial kernels of degree 2, by the form that is predicted cheapest on the device."""

from __future__ import annotations

import logging

from torch import Tensor

from performer_string.ops.forms import PolynomialKernel
from performer_string.ops.key_bias import key_logits
from performer_string.ops.polynomial_sums import summed_attention
from performer_string.ops.squares import is_linear_cheaper_on_gpu

log = logging.getLogger(__name__)


def polynomial_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: PolynomialKernel,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Linear attention with a polynomial kernel of rotated queries and keys, in the form that is predicted cheapest.

    On a GPU the N x N form is a Triton kernel. A warning says once per reason why that does not apply.

    Args:
        q, k: queries and keys, [B, H, N, d].
        v: values, [B, H, N, e].
        kernel: polynomial kernel of rotated queries and keys.
        key_mask: mask of the keys, [B, N], True for keys to attend to.
        key_bias: bias b of the keys, [B, H, N]. The kernel of key j is multiplied by exp(b_j).

    Returns:
        Outputs, [B, H, N, e] in the type of v.
    """
    if q.device.type == "cuda":
        from performer_string.ops.triton.device import product_precision, warn_of_plain_operations
        from performer_string.ops.triton.square import triton_square_attention, why_square_unsupported

        # The kernels take one type. Under autocast, `qk_norm` returns queries and keys in float32.
        inputs = (q.to(v.dtype), k.to(v.dtype), v)
        reason = why_square_unsupported(*inputs, key_mask, key_bias)
        if reason is not None:
            warn_of_plain_operations(log, "polynomial attention runs in plain torch operations", reason)
        elif not is_linear_cheaper_on_gpu(*inputs, product_precision(v) == "ieee"):
            bias = None if key_bias is None else key_logits(key_bias, key_mask)
            return triton_square_attention(*inputs, kernel, key_mask, bias)
    return summed_attention(q, k, v, kernel, key_mask, key_bias)
