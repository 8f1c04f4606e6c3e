"""Linear attention without N x m features: which kernel does it, and the one function that attention calls."""

from __future__ import annotations

import logging

from torch import Tensor

from performer_string.features import FeatureForm
from performer_string.kernels.chunked import chunked_attention

__all__ = ["fused_attention"]

log = logging.getLogger(__name__)
told: set[str] = set()  # reasons are logged once


def tell(reason: str) -> None:
    if reason not in told:
        told.add(reason)
        log.info("linear attention runs in chunks of plain torch operations; the Triton kernel: %s", reason)


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

    On an NVIDIA GPU the Triton kernel, where it supports the types and shapes; else chunks. Which, and why, is logged
    once at the level INFO. Outputs are the same up to rounding.
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
