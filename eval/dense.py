"""Attention in full, N x N, for interventions on trained models: an estimate's limit, and only the keys nearby."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.bias import RelativeBias
from performer_string.feature_maps import FeatureMap
from performer_string.layers.backends import EVERY_TOKEN, AttentionBackend, LinearBackend, SoftmaxBackend
from performer_string.ops.layout import TokenLayout
from performer_string.ops.rotary import rotate_pair
from performer_string.position.rotation import Rotation

ROWS = 256  # queries at a time


class Dense(AttentionBackend):
    """Attention by its weights in full, so many queries at a time."""

    def rows(self, some: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, layout: TokenLayout) -> Tensor:
        """The weights of some of the queries, which are those given: q [B, H, n, d], k [B, H, N, d] -> [B, H, n, N]."""
        raise NotImplementedError

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        locality: RelativeBias | None = None,
        layout: TokenLayout = EVERY_TOKEN,
        key_bias: Tensor | None = None,
    ) -> Tensor:
        q, k = rotate_pair(q, k, rotation)

        def part(some: slice) -> Tensor:
            weights = self.rows(some, q[:, :, some], k, key_bias, layout)
            return (weights if locality is None else locality.modulate(weights, layout, some)) @ v.to(weights.dtype)

        parts = [part(slice(start, start + ROWS)) for start in range(0, q.shape[-2], ROWS)]
        return torch.cat(parts, dim=-2).to(v.dtype)  # [B, H, N, d]


class ExpectedKernel(Dense):
    """Attention with the kernel that a feature map estimates, E phi(q)^T phi(k), in full: no variance of a draw."""

    def __init__(self, phi: FeatureMap):
        super().__init__()
        self.phi, self.homogeneous, self.logit_scale = phi, phi.homogeneous, phi.scale

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        rotation: Rotation | None = None,
        key_bias: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        logits = self.phi.log_kernel(*rotate_pair(q, k, rotation))
        if key_bias is not None:
            logits = logits + key_bias[:, :, None]
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask[:, None, None, :], -math.inf)
        return logits.softmax(-1).nan_to_num(0.0)

    def rows(self, some: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, layout: TokenLayout) -> Tensor:
        return self.weights(q, k, None, key_bias, layout.mask)


def has_log_kernel(kind: type[FeatureMap]) -> bool:
    """A map of one's own may do without: it is there to be studied."""
    return kind.log_kernel is not FeatureMap.log_kernel


def expected(backend: AttentionBackend) -> AttentionBackend | None:
    """The same attention in the limit of many features; None where it is not known (performer-pytorch, a map without
    a `log_kernel`) or there is none (learned features)."""
    if isinstance(backend, LinearBackend):
        known = has_log_kernel(type(backend.phi)) and not backend.phi.learned
        return ExpectedKernel(backend.phi) if known else None
    return backend if isinstance(backend, SoftmaxBackend) else None


class NearKeys(Dense):
    """Attention that ends where the offsets of training do: key j has a say where |p_i - p_j| <= extent in each axis.

    Its weights are those of `backend`, normalised over the keys that are left. Prefix tokens are near to all.
    """

    def __init__(self, backend: AttentionBackend, extent: Sequence[float]):
        super().__init__()
        self.backend, self.extent = backend, extent
        self.homogeneous, self.logit_scale = backend.homogeneous, backend.logit_scale

    def near(self, some: slice, layout: TokenLayout) -> Tensor:
        """Return which keys are near to some of the queries, [n, N]."""
        assert layout.positions is not None
        offsets = (layout.positions[some, None] - layout.positions).abs()  # [n, N, C]
        near = (offsets <= offsets.new_tensor(self.extent) + 1e-3).all(-1)
        prefix = torch.arange(len(layout.positions), device=near.device) < layout.num_prefix
        return near | prefix | prefix[some, None]

    def rows(self, some: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, layout: TokenLayout) -> Tensor:
        near = self.near(some, layout)
        near = near if layout.mask is None else near & layout.mask[:, None, None]
        weights = self.backend.weights(q, k, None, key_bias) * near
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
