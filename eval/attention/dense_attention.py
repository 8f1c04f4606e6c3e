"""Attention by N x N weights, for analysis: the limit of many random features, and attention to near keys only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.feature_maps import FeatureMap
from performer_string.layers.backends import AttentionBackend, AttentionContext, LinearBackend, SoftmaxBackend
from performer_string.ops.layout import TokenLayout
from performer_string.ops.rotary import rotate_pair

QUERIES_AT_A_TIME = 256


class DenseAttention(AttentionBackend):
    """Attention by rows of its N x N weights, for a slice of the queries at a time."""

    def rows(self, queries: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, layout: TokenLayout) -> Tensor:
        """Return the weights of some of the queries.

        Args:
            queries: slice of the N tokens whose weights are computed.
            q: these queries, rotated, [B, H, n, d].
            k: all keys, rotated, [B, H, N, d].
            key_bias: logits added for each key, [B, H, N].
            layout: positions and mask of all tokens.

        Returns:
            Weights, [B, H, n, N].
        """
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        q, k = rotate_pair(q, k, context.rotation)
        outputs = []
        for start in range(0, q.shape[-2], QUERIES_AT_A_TIME):
            queries = slice(start, start + QUERIES_AT_A_TIME)
            weights = self.rows(queries, q[:, :, queries], k, context.key_bias, context.layout)
            if context.locality is not None:
                weights = context.locality.modulate(weights, context.layout, queries)
            outputs.append(weights @ v.to(weights.dtype))
        return torch.cat(outputs, dim=-2).to(v.dtype)  # [B, H, N, d]


class ExpectedKernel(DenseAttention):
    """Attention with the kernel that a feature map estimates, E phi(q)^T phi(k), without the variance of a draw.

    Args:
        phi: feature map with a `log_kernel`.
    """

    def __init__(self, phi: FeatureMap):
        super().__init__()
        self.phi, self.homogeneous, self.logit_scale = phi, phi.homogeneous, phi.scale

    def matrix(self, q: Tensor, k: Tensor, context: AttentionContext) -> Tensor:
        """Return the normalised kernel of queries [B, H, n, d] and keys [B, H, N, d]: [B, H, n, N]."""
        logits = self.phi.log_kernel(*rotate_pair(q, k, context.rotation))
        if context.key_bias is not None:
            logits = logits + context.key_bias[:, :, None]
        if context.layout.mask is not None:
            logits = logits.masked_fill(~context.layout.mask[:, None, None, :], -math.inf)
        return logits.softmax(-1).nan_to_num(0.0)

    def rows(self, queries: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, layout: TokenLayout) -> Tensor:
        return self.matrix(q, k, AttentionContext(None, None, layout, key_bias))


def has_log_kernel(kind: type[FeatureMap]) -> bool:
    """Return whether a feature map defines the kernel it estimates, which only evaluations need."""
    return kind.log_kernel is not FeatureMap.log_kernel


def expected_backend(backend: AttentionBackend) -> AttentionBackend | None:
    """Return the same attention in the limit of many features.

    Returns:
        A backend; None where the limit is not known (another attention, a map without `log_kernel`) or does not exist
        (learned features).
    """
    if type(backend) is LinearBackend:  # a subclass, as that of rotated features, attends otherwise
        known = has_log_kernel(type(backend.phi)) and not backend.phi.learned
        return ExpectedKernel(backend.phi) if known else None
    return backend if type(backend) is SoftmaxBackend else None


class NearKeys(DenseAttention):
    """Attention to the keys whose offset from the query occurs in training: |p_i - p_j| <= extent in each axis.

    Its weights are those of a backend, normalised over the remaining keys. Prefix tokens are near to all tokens.

    Args:
        backend: attention backend that computes the weights.
        extent: largest offset along each axis, in patches.
    """

    def __init__(self, backend: AttentionBackend, extent: Sequence[float]):
        super().__init__()
        self.backend, self.extent = backend, extent
        self.homogeneous, self.logit_scale = backend.homogeneous, backend.logit_scale

    def near(self, queries: slice, layout: TokenLayout) -> Tensor:
        """Return a mask of the keys that are near to each of some queries, [n, N]."""
        assert layout.positions is not None
        offsets = (layout.positions[queries, None] - layout.positions).abs()  # [n, N, C]
        near = (offsets <= offsets.new_tensor(self.extent) + 1e-3).all(-1)
        prefix = torch.arange(len(layout.positions), device=near.device) < layout.num_prefix
        return near | prefix | prefix[queries, None]

    def rows(self, queries: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, layout: TokenLayout) -> Tensor:
        weights = self.backend.weights(q, k, None, key_bias, layout.mask) * self.near(queries, layout)
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
