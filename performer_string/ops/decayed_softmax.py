"""Softmax attention with a decay by torch's fused attention, where log lambda is an inner product.

    log lambda(p_i - p_j) = <a_i, b_j>

for columns a and b of the tokens, as of a Gaussian. With these columns beside queries and keys, softmax attention has
the decay in numerator and denominator, which is the normalised form. In the other form the denominator lacks it. Each
key is then given twice: once with its columns and its value, and once with columns of zero and an indicator u as value.
One softmax over these 2 N keys gives both sums over one denominator, which cancels in their quotient:

    o_i = sum_j exp(<q_i, k_j> + b_j + <a_i, b_j>) v_j / sum_j exp(<q_i, k_j> + b_j)

No N x N numbers are held, in training neither. Attention takes some twice the time of that without a decay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.ops.fused_softmax import fused_softmax
from performer_string.ops.layout import TokenLayout
from performer_string.utils._compat import values_unavailable

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias

# Largest bound of a logit's rounding: the terms of <a_i, b_j> grow with the square of the distances, and cancel.
LARGEST_ERROR = 1e-3

# Widths of these multiples are faster on a CPU, and on a GPU others hold N x N weights in float32.
MULTIPLE = 8


def decay_columns(q: Tensor, locality: RelativeBias, layout: TokenLayout) -> tuple[Tensor, Tensor] | None:
    """Return the columns a and b of a decay, [H, N, c] each, or None where N x N weights are to be used.

    These are used for few tokens, under compilers and transforms, for decays without columns, on a GPU whose products
    are not in full float32, and where the columns would lose digits: for a Gaussian of sigma 1 in images of more than
    some 90 x 90 patches.

    Args:
        q: queries in float32 or better, [B, H, N, d].
        locality: the decay.
        layout: positions of the tokens, and prefix.
    """
    positions = layout.positions
    assert positions is not None
    rounds = q.device.type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32"
    if rounds or values_unavailable() or positions.is_meta:
        return None
    if len(positions) <= locality.max_dense_tokens or q.numel() == 0:
        return None
    columns = locality.log_columns(positions, layout.num_prefix)
    if columns is None:
        return None
    largest = torch.stack([x.detach().abs().amax(dim=1) for x in columns]).prod(0).sum(-1).max()  # of the sums of terms
    return columns if torch.finfo(q.dtype).eps * float(largest) <= LARGEST_ERROR else None


def attend_with_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: tuple[Tensor, Tensor],
    normalised: bool,
    key_mask: Tensor | None,
    key_bias: Tensor | None,
) -> Tensor:
    """Return the outputs of softmax attention with a decay.

    Args:
        q, k, v: queries, which hold the scale of the logits, keys and values, [B, H, N, d], in one type.
        columns: columns a and b of the decay from `decay_columns`, [H, N, c].
        normalised: whether the denominator has the decay too.
        key_mask: mask of the keys, [B, N], or None.
        key_bias: bias of the keys from `key_logits`, [B, H, N], or None.

    Returns:
        Outputs, [B, H, N, e]. Those of a sample without keys are zero.
    """
    width = v.shape[-1]
    a, b = (x.to(q.dtype).expand(q.shape[0], -1, -1, -1) for x in columns)
    q, decayed = torch.cat([q, a], dim=-1), torch.cat([k, b], dim=-1)
    if normalised:
        keys, values = decayed, v
    else:
        keys = torch.cat([decayed, F.pad(k, (0, b.shape[-1]))], dim=2)  # [B, H, 2 N, d + c]
        indicator = v.new_ones(*v.shape[:-1], 1)
        values = torch.cat([F.pad(v, (0, 1)), F.pad(indicator, (width, 0))], dim=2)  # [B, H, 2 N, e + 1]
        key_mask = None if key_mask is None else torch.cat([key_mask, key_mask], dim=-1)
        key_bias = None if key_bias is None else torch.cat([key_bias, key_bias], dim=-1)
    out = fused_softmax(q, keys, values, 1.0, key_mask, key_bias, multiple=MULTIPLE)
    if normalised:
        return out
    total = out[..., width:]
    return out[..., :width] / (total if key_mask is None else total.masked_fill(total == 0, 1.0))
