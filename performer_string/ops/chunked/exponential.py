"""Linear attention with exponential features in chunks of tokens, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.ops.chunked.sums import ChunkSums, KeyChunk, join, multiply_heads


class ExponentialSums(ChunkSums):
    """Sums for phi_f(x) = exp(w_f x - square |x|^2), as two softmax attentions in a row.

    Each feature f attends to the keys, and each query to the m features:

        l_jf = w_f k_j - square |k_j|^2 + b_j
        U_f = sum_j softmax_j(l_jf) v_j,   L_f = log sum_j exp(l_jf)
        o_i = sum_f softmax_f(w_f q_i + L_f) U_f

    Factors of a query or of a feature cancel. The result is finite at every norm whose square is finite (1e19 in
    float32). The sums over j are taken relative to a running maximum of each feature.

    The backward pass has biases as columns of its matrix products (`join`), which saves passes over the features.

    Attributes:
        largest: running maximum of l_jf, [H, B, m].
        total: running sum of exp(l_jf - largest) over the keys, [H, B, m].
        means: sum of exp(l_jf - largest) v_j before `close`, and U afterwards, [H, B, m, d_v].
        log_total: log-normalisers L, [H, B, m].
    """

    largest: Tensor
    total: Tensor
    means: Tensor
    log_total: Tensor

    def begin(self, keys: Tensor, width: int, masked: Tensor | None) -> None:
        self.any_masked, self.first = masked is not None, True

    def key_offsets(self, keys: KeyChunk) -> Tensor:
        """Return b_j - square |k_j|^2, the part of l_jf that all features share: [H, B, C, 1].

        Masked keys have half the lowest number of the type, so that adding w_f k_j does not overflow.
        """
        offsets = keys.x.square().sum(-1, keepdim=True).mul_(-self.form.square)
        if keys.bias is not None:
            offsets.add_(keys.bias)
        return offsets if keys.masked is None else offsets.masked_fill_(keys.masked, torch.finfo(offsets.dtype).min / 2)

    def key_logits(self, keys: KeyChunk) -> Tensor:
        """Return l_jf of a chunk of keys, [H, B, C, m]."""
        return multiply_heads(keys.x, self.weight.mT, self.key_offsets(keys))

    def query_weights(self, x: Tensor) -> Tensor:
        """Return softmax_f(w_f q_i + L_f) of a chunk of queries, [H, B, C, m]."""
        return multiply_heads(x, self.weight.mT, self.log_total[:, :, None]).softmax(-1)

    def add_keys(self, keys: KeyChunk) -> None:
        logits = self.key_logits(keys)
        largest = logits.amax(-2)  # [H, B, m]
        if not self.first:
            largest = torch.maximum(self.largest, largest)
        weights = logits.sub_(largest[:, :, None]).exp_()
        total, means = weights.sum(-2), self.product(weights.mT, keys.v)
        if not self.first:
            shrink = (self.largest - largest).exp_()
            total.addcmul_(self.total, shrink)
            means.addcmul_(self.means, shrink[..., None])
        self.largest, self.total, self.means, self.first = largest, total, means, False

    def close(self) -> tuple[Tensor, ...]:
        return self.without_masked(self.means.div_(self.total[..., None]), self.total.log_().add_(self.largest))

    def without_masked(self, means: Tensor, log_total: Tensor) -> tuple[Tensor, Tensor]:
        """Return U and L, both zero where every key is masked, and store them.

        Args:
            means: means U, [H, B, m, d_v].
            log_total: log-normalisers L, [H, B, m].
        """
        if self.any_masked:
            no_keys = log_total < torch.finfo(log_total.dtype).min / 4  # [H, B, m]
            means, log_total = means.masked_fill(no_keys[..., None], 0.0), log_total.masked_fill(no_keys, 0.0)
        self.means, self.log_total = means, log_total
        return means, log_total

    def outputs(self, x: Tensor) -> Tensor:
        return self.product(self.query_weights(x), self.means)

    def restore(self, state: tuple[Tensor, ...]) -> None:
        self.means, self.log_total = state
        self.means_gradient = torch.zeros_like(self.means)
        self.log_total_gradient = torch.zeros_like(self.log_total)
        weight, log_total = self.weight[:, None].expand(*self.means.shape[:3], -1), self.log_total[..., None]
        self.one = log_total.new_ones(1)
        self.for_queries = join(weight, log_total)
        self.for_keys = join(weight, self.one, -log_total)
        self.for_outputs = join(self.means, self.one)

    def backward_queries(self, x: Tensor, out: Tensor, gradient: Tensor) -> Tensor:
        weights = (join(x, self.one) @ self.for_queries.mT).softmax(-1)
        self.means_gradient += self.product(weights.mT, gradient)
        out_gradient = (out * gradient).sum(-1, keepdim=True)
        logits_gradient = (join(gradient, -out_gradient) @ self.for_outputs.mT).mul_(weights)
        self.log_total_gradient += logits_gradient.sum(-2)
        return self.backward_projection(logits_gradient, x)

    def backward_close(self) -> None:
        self.log_total_gradient -= (self.means * self.means_gradient).sum(-1)
        self.for_values = join(self.means_gradient, self.log_total_gradient[..., None])

    def backward_keys(self, keys: KeyChunk) -> tuple[Tensor, Tensor, Tensor]:
        weights = (join(keys.x, self.key_offsets(keys), self.one) @ self.for_keys.mT).exp_()
        values_gradient = self.product(weights, self.means_gradient)
        logits_gradient = (join(keys.v, self.one) @ self.for_values.mT).mul_(weights)
        bias_gradient = logits_gradient.sum(-1, keepdim=True)  # [H, B, C, 1]
        norm_gradient = keys.x * (2 * self.form.square * bias_gradient)
        return self.backward_projection(logits_gradient, keys.x).sub_(norm_gradient), values_gradient, bias_gradient
