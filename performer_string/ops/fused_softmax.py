"""Softmax attention by torch's fused kernels, which take one type, one width, and no bias that has a gradient.

Shapes: queries, keys and values [B, H, N, d]; a key mask [B, N] of booleans, True for keys to attend to.
"""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from performer_string.ops.key_bias import with_bias_columns
from performer_string.utils._compat import is_transformed


def fused_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    key_mask: Tensor | None,
    key_bias: Tensor | None,
    multiple: int = 1,
) -> Tensor:
    """Return sum_j softmax_j(scale <q_i, k_j> + b_j) v_j.

    Args:
        q, k, v: queries, keys and values in one type, [B, H, N, d]; values may have another width.
        scale: scale of the logits.
        key_mask: mask of the keys, [B, N], or None.
        key_bias: bias b of the keys from `key_logits`, [B, H, N], or None.
        multiple: number that the width in the kernel is to be a multiple of.

    Returns:
        Outputs, [B, H, N, e]. Those of a sample without keys are zero.
    """
    width = v.shape[-1]
    q, k, v = pad_to_one_width(q, k, v)
    if key_bias is not None:
        q, k, v = with_bias_columns(q, k, v, key_bias, scale)
    q, k, v = pad_to_one_width(q, k, v, multiple)
    mask = None if key_mask is None else key_mask[:, None, None, :]
    # The fused kernels have no forward-mode derivative.
    with sdpa_kernel(SDPBackend.MATH) if is_transformed() else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)[..., :width]
    # Kernels differ on a row without keys: 0 or NaN.
    return out if mask is None else out.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def pad_to_one_width(q: Tensor, k: Tensor, v: Tensor, multiple: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values with zeros up to the widest of them, which change no product.

    torch's fused kernels take one width, and hold N x N weights where there are several.

    Args:
        q, k, v: queries, keys and values, [B, H, N, d] of any widths d.
        multiple: number that the width is to be a multiple of.
    """
    widest = max(x.shape[-1] for x in (q, k, v))
    widest += -widest % multiple
    q, k, v = (F.pad(x, (0, widest - x.shape[-1])) if x.shape[-1] < widest else x for x in (q, k, v))
    return q, k, v
