"""Linear attention without N x m features: which kernel does it, and the one function that attention calls."""

from __future__ import annotations

import logging

from torch import Tensor

from performer_string.features import FeatureForm
from performer_string.kernels import compiled as compiled  # registers its operations
from performer_string.kernels.chunked import chunked_attention
from performer_string.logs import warn_once

__all__ = ["fused_attention"]

log = logging.getLogger(__name__)


def tell(reason: str) -> None:
    kind, _, _ = reason.partition(", not ")  # without the shapes that were given: they may differ at every call
    warn_once(log, kind, f"linear attention runs in chunks of plain torch operations; the Triton kernel: {reason}")


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: FeatureForm,
    planes: tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Linear attention by the fastest kernel for these inputs; the arguments are those of `chunked_attention`.

    On an NVIDIA GPU the Triton kernel, where it supports the types and shapes; else chunks. Where it does not, a
    warning says once why. Outputs are the same up to rounding, except where keys of one head differ so much in length
    that powers of the shorter leave float32: chunks scale all keys by the longest, Triton each feature by its largest.
    """
    if q.device.type == "cuda":
        try:
            from performer_string.kernels.triton_linear import supports, triton_linear_attention
        except ImportError as error:
            tell(f"triton cannot be imported ({error}).")
        else:
            q, k = q.to(v.dtype), k.to(v.dtype)  # under autocast a norm of queries and keys leaves them in float32
            reason = supports(q, k, v, form, planes, key_mask, key_bias)
            if reason is None:
                return triton_linear_attention(q, k, v, form, planes, key_mask, key_bias)
            tell(reason)
    return chunked_attention(q, k, v, form, planes, key_mask, key_bias)
