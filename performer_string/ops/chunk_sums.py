"""What each kind of feature map does with a chunk of keys or queries, forward and backward.

Chunks are [H, B, C, .]: heads first, so that the projection of all samples of a head is one matrix product. Features
and sums are in float32 or better; products with values may be in bf16, whose results are summed in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from performer_string.ops.forms import FeatureForm
from performer_string.utils.numerics import integer_power, least_norm


def over_heads(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [H, B, C, a] times a matrix of each head [H, a, b], plus a bias [H, B, C or 1, b or 1]: [H, B, C, b]."""
    rows = x.flatten(1, 2)  # [H, B C, a]
    if bias is not None and x.shape[1] == 1:  # one operation for both, where the bias has no axis of samples
        return torch.baddbmm(bias[:, 0], rows, matrix)[:, None]
    product = torch.bmm(rows, matrix).unflatten(1, x.shape[1:3])
    return product if bias is None else product.add_(bias)


def over_samples(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """x [H, B, C, a] times a matrix of each head and sample [H, B, a, b], plus a bias: [H, B, C, b]."""
    if x.shape[1] == 1:
        return torch.baddbmm(bias[:, 0], x[:, 0], matrix[:, 0])[:, None]
    return (x @ matrix).add_(bias)


@dataclass(frozen=True)
class KeyChunk:
    """A chunk of keys.

    Attributes:
        x: rotated, in the type of the features, [H, B, C, d].
        v: their values, [H, B, C, d_v].
        masked: which are masked, [1, B, C, 1], or None.
        bias: of exponentials, added to the logarithm of each feature, [H, B, C, 1], or None.
    """

    x: Tensor
    v: Tensor
    masked: Tensor | None
    bias: Tensor | None


class Sums:
    """The sums over the keys that the queries of a group of samples need, and their gradients.

    Forward: `add_keys` for each chunk, `close`, `queries` for each chunk. Backward: `restore` what `close` gave,
    `queries_back` for each chunk, `close_back`, `keys_back` for each chunk.

    Args:
        form: of the feature map.
        weight: its W in the type of the features, [H, m, d].
        value_dtype: the type of the products with values.
        learned: whether a gradient of W is wanted.
    """

    def __init__(self, form: FeatureForm, weight: Tensor, value_dtype: torch.dtype, learned: bool):
        self.form, self.weight, self.value_dtype = form, weight, value_dtype
        self.weight_gradient = torch.zeros_like(weight) if learned else None

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a b with operands in the type of the values, as float32 or better."""
        return (a.to(self.value_dtype) @ b.to(self.value_dtype)).to(self.weight.dtype)

    def through_weight(self, gradient: Tensor, x: Tensor, factor: int = 1) -> Tensor:
        """The gradient of x from that of x W^T, `factor` times [H, B, C, m]; that of W is added up."""
        if self.weight_gradient is not None:
            of_weight = gradient.flatten(1, 2).mT @ x.flatten(1, 2)  # [H, m, B C] [H, B C, d]
            self.weight_gradient.add_(of_weight, alpha=factor)
        return over_heads(gradient, self.weight).mul_(factor)


class ExponentialSums(Sums):
    """phi_f(x) = exp(w_f x - square |x|^2), as attention to m landmarks, each of which has attended to the keys:

        U_f = sum_j softmax_j(l_jf) v_j,   e_f = log sum_j exp(l_jf),   l_jf = w_f k_j - square |k_j|^2
        o_i = sum_f softmax_f(w_f q_i + e_f) U_f

    The factors of each query and feature cancel, so that two softmaxes are all that there is, finite at any norm
    whose square is (1e19 in float32).
    The sums over j are taken under a running maximum.
    """

    largest: Tensor
    total: Tensor
    landmarks: Tensor

    def begin(self, keys: Tensor, width: int, masked: Tensor | None) -> None:
        """Before the first chunk: keys [H, B, N, d] of the group, the width of the values, the masked keys."""
        self.any_masked, self.first = masked is not None, True

    def key_offsets(self, keys: KeyChunk) -> Tensor:
        """What each key adds to all of its features' logits, [H, B, C, 1]: hardly anything is less where masked."""
        offsets = keys.x.square().sum(-1, keepdim=True).mul_(-self.form.square)
        if keys.bias is not None:
            offsets.add_(keys.bias)
        return offsets if keys.masked is None else offsets.masked_fill_(keys.masked, torch.finfo(offsets.dtype).min / 2)

    def key_logits(self, keys: KeyChunk) -> Tensor:
        return over_heads(keys.x, self.weight.mT, self.key_offsets(keys))

    def add_keys(self, keys: KeyChunk) -> None:
        logits = self.key_logits(keys)
        largest = logits.amax(-2)  # [H, B, m]
        if not self.first:
            largest = torch.maximum(self.largest, largest)
        weights = logits.sub_(largest[:, :, None]).exp_()
        total, landmarks = weights.sum(-2), self.product(weights.mT, keys.v)
        if not self.first:
            shrink = (self.largest - largest).exp_()
            total.addcmul_(self.total, shrink)
            landmarks.addcmul_(self.landmarks, shrink[..., None])
        self.largest, self.total, self.landmarks, self.first = largest, total, landmarks, False

    def close(self) -> tuple[Tensor, ...]:
        return self.without_masked(self.landmarks.div_(self.total[..., None]), self.total.log_().add_(self.largest))

    def without_masked(self, landmarks: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
        """What `close` gives: zero where every key is masked."""
        if self.any_masked:
            no_keys = log < torch.finfo(log.dtype).min / 4  # [H, B, m]
            landmarks, log = landmarks.masked_fill(no_keys[..., None], 0.0), log.masked_fill(no_keys, 0.0)
        self.landmarks, self.log = landmarks, log
        return landmarks, log

    def queries(self, x: Tensor) -> Tensor:
        logits = over_heads(x, self.weight.mT, self.log[:, :, None])
        return self.product(logits.softmax(-1), self.landmarks)

    def restore(self, state: tuple[Tensor, ...]) -> None:
        self.landmarks, self.log = state
        self.landmarks_gradient, self.log_gradient = torch.zeros_like(self.landmarks), torch.zeros_like(self.log)

    def queries_back(self, x: Tensor, out: Tensor, gradient: Tensor) -> Tensor:
        weights = over_heads(x, self.weight.mT, self.log[:, :, None]).softmax(-1)
        self.landmarks_gradient += self.product(weights.mT, gradient)
        along = (out * gradient).sum(-1, keepdim=True)
        logits_gradient = over_samples(gradient, self.landmarks.mT, -along).mul_(weights)
        self.log_gradient += logits_gradient.sum(-2)
        return self.through_weight(logits_gradient, x)

    def close_back(self) -> None:
        self.log_gradient -= (self.landmarks * self.landmarks_gradient).sum(-1)

    def keys_back(self, keys: KeyChunk) -> tuple[Tensor, Tensor, Tensor]:
        weights = self.key_logits(keys).sub_(self.log[:, :, None]).exp_()
        values_gradient = self.product(weights, self.landmarks_gradient)
        logits_gradient = over_samples(keys.v, self.landmarks_gradient.mT, self.log_gradient[:, :, None]).mul_(weights)
        bias_gradient = logits_gradient.sum(-1, keepdim=True)  # [H, B, C, 1]
        shrunk = keys.x * (2 * self.form.square * bias_gradient)
        return self.through_weight(logits_gradient, keys.x).sub_(shrunk), values_gradient, bias_gradient


class PowerSums(Sums):
    """phi_f(x) = relu(w_f x)^p: o_i = a_i^T S / a_i^T z with a = phi(q / |q|), S = sum_j phi(k_j / s) v_j^T and
    z = sum_j phi(k_j / s), s the largest norm of a head's keys. phi is homogeneous, so that |q| and s cancel.
    """

    def begin(self, keys: Tensor, width: int, masked: Tensor | None) -> None:
        shape = (*keys.shape[:2], self.weight.shape[1])  # [H, B, m]
        norms = keys.norm(dim=-1, keepdim=True, dtype=self.weight.dtype)  # [H, B, N, 1]
        if masked is not None:
            norms = norms.masked_fill(masked, 0.0)
        self.scale = norms.amax(-2, keepdim=True).clamp_min_(least_norm(self.weight.dtype))  # [H, B, 1, 1]
        self.total, self.sums = self.weight.new_zeros(shape), self.weight.new_zeros(*shape, width)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """relu(w x)^(p-1) and relu(w x)^p."""
        positive = over_heads(x, self.weight.mT).relu_()
        if self.form.order == 1:
            return (positive > 0).to(positive.dtype), positive
        below = integer_power(positive, self.form.order - 1, in_place=True, keep=True)
        return below, below * positive if below is positive else positive.mul_(below)

    def power(self, x: Tensor) -> Tensor:
        return integer_power(over_heads(x, self.weight.mT).relu_(), self.form.order, in_place=True)

    def scaled_keys(self, keys: KeyChunk) -> Tensor:
        x = keys.x / self.scale
        return x if keys.masked is None else x.masked_fill_(keys.masked, 0.0)

    def norms(self, x: Tensor) -> Tensor:
        return x.norm(dim=-1, keepdim=True).clamp_min_(least_norm(x.dtype))

    def add_keys(self, keys: KeyChunk) -> None:
        features = self.power(self.scaled_keys(keys))
        self.total += features.sum(-2)
        self.sums += self.product(features.mT, keys.v)

    def close(self) -> tuple[Tensor, ...]:
        return self.sums, self.total, self.scale

    def denominator(self, features: Tensor) -> Tensor:
        total = torch.linalg.vecdot(features, self.total[:, :, None])[..., None]  # [H, B, C, 1]
        # a query that no key answers to gives zero; of what is smaller, gradients leave the range of numbers
        return torch.where(total > torch.finfo(total.dtype).tiny ** 0.7, total, math.inf)

    def queries(self, x: Tensor) -> Tensor:
        features = self.power(x / self.norms(x))
        return self.product(features, self.sums).div_(self.denominator(features))

    def restore(self, state: tuple[Tensor, ...]) -> None:
        self.sums, self.total, self.scale = state
        self.sums_gradient, self.total_gradient = torch.zeros_like(self.sums), torch.zeros_like(self.total)

    def queries_back(self, x: Tensor, out: Tensor, gradient: Tensor) -> Tensor:
        norms = self.norms(x)
        x = x / norms
        below, features = self.features(x)
        denominator = self.denominator(features)
        along = (out * gradient).sum(-1, keepdim=True).div_(denominator)
        gradient = gradient / denominator
        self.sums_gradient += self.product(features.mT, gradient)
        self.total_gradient -= (features * along).sum(-2)
        features_gradient = (gradient @ self.sums.mT).addcmul_(along, self.total[:, :, None], value=-1)
        return self.through_weight(features_gradient.mul_(below), x, self.form.order).div_(norms)

    def close_back(self) -> None:
        pass

    def keys_back(self, keys: KeyChunk) -> tuple[Tensor, Tensor, None]:
        x = self.scaled_keys(keys)
        below, features = self.features(x)
        features_gradient = over_samples(keys.v, self.sums_gradient.mT, self.total_gradient[:, :, None])
        gradient = self.through_weight(features_gradient.mul_(below), x, self.form.order).div_(self.scale)
        return gradient, self.product(features, self.sums_gradient), None
