"""Attention in full, N x N, for interventions on trained models: an estimate's limit, and only the keys nearby."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.attend import Attend, Focus, LinearAttention, SoftmaxAttention
from performer_string.attention import rotate_pair
from performer_string.features import FeatureMap
from performer_string.rotation import Rotation

ROWS = 256  # queries at a time


class Dense(Attend):
    """Attention by its weights in full, so many queries at a time."""

    def rows(self, some: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, key_mask: Tensor | None) -> Tensor:
        """The weights of some of the queries, which are those given: q [B, H, n, d], k [B, H, N, d] -> [B, H, n, N]."""
        raise NotImplementedError

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
        key_bias: Tensor | None = None,
    ) -> Tensor:
        q, k = rotate_pair(q, k, rotation)

        def part(some: slice) -> Tensor:
            weights = self.rows(some, q[:, :, some], k, key_bias, key_mask)
            return (weights if focus is None else focus.weights(weights, some)) @ v.to(weights.dtype)

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

    def rows(self, some: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, key_mask: Tensor | None) -> Tensor:
        return self.weights(q, k, None, key_bias, key_mask)


def has_log_kernel(kind: type[FeatureMap]) -> bool:
    """A map of one's own may do without: it is there to be studied."""
    return kind.log_kernel is not FeatureMap.log_kernel


def expected(attend: Attend) -> Attend | None:
    """The same attention in the limit of many features; None where it is not known (performer-pytorch, a map without
    a `log_kernel`) or there is none (learned features)."""
    if isinstance(attend, LinearAttention):
        known = has_log_kernel(type(attend.phi)) and not attend.phi.learned
        return ExpectedKernel(attend.phi) if known else None
    return attend if isinstance(attend, SoftmaxAttention) else None


class NearKeys(Dense):
    """Attention that ends where the offsets of training do: key j has a say where |p_i - p_j| <= extent in each axis.

    Its weights are those of `attend`, normalised over the keys that are left; prefix tokens are near to all. `place`
    says where the tokens are.
    """

    def __init__(self, attend: Attend, extent: Sequence[float]):
        super().__init__()
        self.attend, self.extent = attend, extent
        self.homogeneous, self.logit_scale = attend.homogeneous, attend.logit_scale
        self.near = torch.zeros(0, 0)

    def place(self, positions: Tensor, num_prefix: int) -> None:
        offsets = (positions[:, None] - positions).abs()  # [N, N, C]
        near = (offsets <= offsets.new_tensor(self.extent) + 1e-3).all(-1)
        near[:num_prefix] = near[:, :num_prefix] = True
        self.near = near

    def rows(self, some: slice, q: Tensor, k: Tensor, key_bias: Tensor | None, key_mask: Tensor | None) -> Tensor:
        near = self.near[some] if key_mask is None else self.near[some] & key_mask[:, None, None]
        weights = self.attend.weights(q, k, None, key_bias) * near
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
