"""Linear attention without N x m features: which kernel does it, and the one function that attention calls."""

from __future__ import annotations

from torch import Tensor

from performer_string.features import FeatureForm
from performer_string.kernels.chunked import chunked_attention

__all__ = ["fused_attention"]


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: FeatureForm,
    planes: tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Linear attention by the fastest kernel for these inputs; the arguments are those of `chunked_attention`."""
    return chunked_attention(q, k, v, form, planes, key_mask)
