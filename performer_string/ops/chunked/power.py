"""Linear attention in chunks of tokens with features that are powers, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.ops.chunked.sums import ChunkSums, KeyChunk, join, multiply_heads
from performer_string.utils.numerics import integer_power, least_norm, safe_denominator


class PowerSums(ChunkSums):
    """Sums for phi_f(x) = relu(w_f x)^p.

    The map is homogeneous, so that queries and keys can be scaled without a change of the outputs:

        a_i = phi(q_i / |q_i|),   S = sum_j phi(k_j / s) v_j^T,   z = sum_j phi(k_j / s)
        o_i = a_i^T S / a_i^T z

    where s is the largest norm of a head's keys that take part.

    Attributes:
        scale: largest norm s, [H, B, 1, 1].
        sums: sums S, [H, B, m, d_v].
        total: sums z, [H, B, m].
    """

    def begin(self, keys: Tensor, width: int, masked: Tensor | None) -> None:
        shape = (*keys.shape[:2], self.weight.shape[1])  # [H, B, m]
        norms = keys.norm(dim=-1, keepdim=True, dtype=self.weight.dtype)  # [H, B, N, 1]
        if masked is not None:
            norms = norms.masked_fill(masked, 0.0)
        self.scale = norms.amax(-2, keepdim=True).clamp_min_(least_norm(self.weight.dtype))  # [H, B, 1, 1]
        self.total, self.sums = self.weight.new_zeros(shape), self.weight.new_zeros(*shape, width)

    def features(self, x: Tensor) -> Tensor:
        """Return relu(w_f x)^p: [H, B, C, d] -> [H, B, C, m]."""
        return integer_power(multiply_heads(x, self.weight.mT).relu_(), self.form.order, in_place=True)

    def slopes_and_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return relu(w_f x)^(p-1), which is the derivative over p, and relu(w_f x)^p: [H, B, C, m] each."""
        positive = multiply_heads(x, self.weight.mT).relu_()
        if self.form.order == 1:
            return (positive > 0).to(positive.dtype), positive
        slopes = integer_power(positive, self.form.order - 1, in_place=True, keep=True)
        return slopes, slopes * positive if slopes is positive else positive.mul_(slopes)

    def scaled_keys(self, keys: KeyChunk) -> Tensor:
        """Return k_j / s, and zero for masked keys: [H, B, C, d]."""
        x = keys.x / self.scale
        return x if keys.masked is None else x.masked_fill_(keys.masked, 0.0)

    def query_norms(self, x: Tensor) -> Tensor:
        """Return |q_i|, at least the smallest norm whose square is a normal number: [H, B, C, 1]."""
        return x.norm(dim=-1, keepdim=True).clamp_min_(least_norm(x.dtype))

    def denominator(self, features: Tensor) -> Tensor:
        """Return a_i^T z, or infinity where it is too small to divide by: [H, B, C, m] -> [H, B, C, 1]."""
        return safe_denominator(torch.linalg.vecdot(features, self.total[:, :, None])[..., None])

    def add_keys(self, keys: KeyChunk) -> None:
        features = self.features(self.scaled_keys(keys))
        self.total += features.sum(-2)
        self.sums += self.product(features.mT, keys.v)

    def close(self) -> tuple[Tensor, ...]:
        return self.sums, self.total, self.scale

    def outputs(self, x: Tensor) -> Tensor:
        features = self.features(x / self.query_norms(x))
        return self.product(features, self.sums).div_(self.denominator(features))

    def restore(self, state: tuple[Tensor, ...]) -> None:
        self.sums, self.total, self.scale = state
        self.sums_gradient, self.total_gradient = torch.zeros_like(self.sums), torch.zeros_like(self.total)
        self.for_outputs = join(self.sums, self.total[..., None])

    def backward_queries(self, x: Tensor, out: Tensor, gradient: Tensor) -> Tensor:
        norms = self.query_norms(x)
        x = x / norms
        slopes, features = self.slopes_and_features(x)
        denominator = self.denominator(features)
        out_gradient = (out * gradient).sum(-1, keepdim=True).div_(denominator)
        gradient = gradient / denominator
        self.sums_gradient += self.product(features.mT, gradient)
        self.total_gradient -= (features * out_gradient).sum(-2)
        features_gradient = join(gradient, -out_gradient) @ self.for_outputs.mT
        return self.backward_projection(features_gradient.mul_(slopes), x, self.form.order).div_(norms)

    def backward_close(self) -> None:
        self.for_values = join(self.sums_gradient, self.total_gradient[..., None])

    def backward_keys(self, keys: KeyChunk) -> tuple[Tensor, Tensor, None]:
        x = self.scaled_keys(keys)
        slopes, features = self.slopes_and_features(x)
        features_gradient = join(keys.v, keys.v.new_ones(1)) @ self.for_values.mT
        gradient = self.backward_projection(features_gradient.mul_(slopes), x, self.form.order).div_(self.scale)
        return gradient, self.product(features, self.sums_gradient), None
