"""Features of a chunk of tokens at a time, so that those of all tokens, N x m, are never in memory.

A chunk is a number of consecutive tokens. A sum over a grid asks for the features of some tokens and says later what
their gradient is. In between only the tokens are saved, and the features are computed again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from performer_string.feature_maps import FeatureMap
from performer_string.feature_maps.random import check_draw, versions
from performer_string.utils._compat import tensors_of
from performer_string.utils.numerics import chunk_slices

CHUNK_FEATURES = {"cpu": 2**21, "cuda": 2**26}  # features in memory at a time: on a CPU the fastest of the sizes tried


def chunk_features(device: torch.device) -> int:
    """Return the number of features that may be in memory at a time."""
    return CHUNK_FEATURES.get(device.type, CHUNK_FEATURES["cpu"])


def chunk_tokens(x: Tensor, size: int) -> int:
    """Return the number of the tokens [B, H, N, .] in a chunk, with `size` features each: one at least."""
    return max(1, chunk_features(x.device) // (x.shape[0] * x.shape[1] * size))


class FeatureSource(Protocol):
    """Source of the features of a sum, for the heads that it works on.

    Attributes:
        size: number m of features.
        learned: tensors besides the tokens that features depend on and that need a gradient.
    """

    size: int
    learned: tuple[Tensor, ...]

    def queries(self, q: Tensor) -> Tensor:
        """Return features of queries [B, H, T, d], or [.., B, T, d] of one head: [.., m]."""
        ...

    def keys(self, k: Tensor, masked: Tensor | None) -> Tensor:
        """Return features of keys, zero where `masked` [B, 1, T, 1] or [.., B, T, 1] is True."""
        ...

    def sum_keys(self, k: Tensor, v: Tensor, masked: Tensor | None) -> Tensor:
        """Return sum_j phi(k_j) v_j^T of keys [B, H, N, d] and values [B, H, N, e]: [B, H, m, e]."""
        ...

    def select_heads(self, heads: list[int] | int) -> FeatureSource:
        """Return the source of some of its heads, or of one."""
        ...


class StoredFeatures:
    """Features that are in memory anyway: the tokens are their own features, and masked keys are zero already.

    Args:
        size: number m of features.
    """

    learned: tuple[Tensor, ...] = ()

    def __init__(self, size: int):
        self.size = size

    def queries(self, q: Tensor) -> Tensor:
        """Return the queries."""
        return q

    def keys(self, k: Tensor, masked: Tensor | None) -> Tensor:
        """Return the keys."""
        return k

    def sum_keys(self, k: Tensor, v: Tensor, masked: Tensor | None) -> Tensor:
        """Return sum_j k_j v_j^T."""
        return k.mT @ v

    def select_heads(self, heads: list[int] | int) -> FeatureSource:
        """Return itself, which does not depend on the head."""
        return self


class RecomputedFeatures:
    """Features of a map, with the weights and the draw that it had in the forward pass.

    Args:
        phi: feature map.
        scale: `key_scale` of the map over all keys, [B, H, 1, 1 or m]; without the axis of heads for one head.

    Attributes:
        heads: heads of the map that the axis of heads stands for, at first all; an integer for one head.
    """

    heads: list[int] | int

    def __init__(self, phi: FeatureMap, scale: Tensor):
        self.phi, self.scale, self.heads, self.size = phi, scale, list(range(phi.num_heads)), phi.num_features
        self.tensors = tensors_of(phi)
        self.learned = tuple(x for x in self.tensors.values() if x.requires_grad)
        self.fixed = [x for x in self.tensors.values() if not x.requires_grad]
        self.fixed_versions = versions(self.fixed)

    def queries(self, q: Tensor) -> Tensor:
        """Return features of queries."""
        return self._call("scaled_queries", q, self.scale, self.heads)

    def keys(self, k: Tensor, masked: Tensor | None) -> Tensor:
        """Return features of keys, zero where masked."""
        return self._call("scaled_keys", k, self.scale, masked, self.heads)

    def sum_keys(self, k: Tensor, v: Tensor, masked: Tensor | None) -> Tensor:
        """Return sum_j phi(k_j) v_j^T, chunk by chunk; the backward pass computes the features of each again."""

        def part(k: Tensor, v: Tensor, masked: Tensor | None) -> Tensor:
            return self.keys(k, masked).mT @ v

        slices = _slices(self.size, k)
        sizes = [tokens.stop - tokens.start for tokens in slices]
        masks = [None if masked is None else masked[:, :, tokens] for tokens in slices]
        total: Tensor | None = None
        # The gradient of each slice would be as large as all keys; that of a split is not.
        for args in zip(k.split(sizes, dim=2), v.split(sizes, dim=2), masks, strict=True):
            if torch.is_grad_enabled():
                sums = checkpoint(part, *args, use_reentrant=False, preserve_rng_state=False)
            else:
                sums = part(*args)
            total = sums if total is None else total + sums
        assert total is not None
        return total

    def _call(self, method: str, *args: Any) -> Tensor:
        """Return the result of a method of the map, with the tensors of the forward pass.

        Raises:
            RuntimeError: random features that were drawn anew since the forward pass.
        """
        check_draw(self.fixed, self.fixed_versions)
        present = tensors_of(self.phi)
        if all(present[name] is x for name, x in self.tensors.items()):
            return cast(Tensor, getattr(self.phi, method)(*args))
        # After `functional_call`, in the backward pass, the map has its registered weights again.
        replacements = {f"phi.{name}": x for name, x in self.tensors.items()}
        return cast(Tensor, functional_call(_Method(self.phi, method), replacements, args))

    def select_heads(self, heads: list[int] | int) -> FeatureSource:
        """Return the source of some of its heads, or of one."""
        assert isinstance(self.heads, list)
        source = copy.copy(self)
        source.scale = self.scale[:, heads]
        source.heads = self.heads[heads] if isinstance(heads, int) else [self.heads[h] for h in heads]
        return source


class _Method(nn.Module):
    """A map's method as a module's `forward`."""

    def __init__(self, phi: FeatureMap, method: str):
        super().__init__()
        self.phi, self.method = phi, method

    def forward(self, *args: Any) -> Tensor:
        return cast(Tensor, getattr(self.phi, self.method)(*args))


class Recomputed:
    """Features computed again in a backward pass, with the graph to their tokens.

    Args:
        compute: function that computes features from tokens and `rest`.
        tokens: queries or keys.
        rest: further arguments of `compute`.

    Attributes:
        features: features without a graph.
        grad: gradient of the features, which the sum sets before it calls `backward`.
    """

    grad: Tensor

    def __init__(self, compute: Callable[..., Tensor], tokens: Tensor, *rest: Tensor | None):
        with torch.enable_grad():
            self.tokens = tokens.detach().requires_grad_()
            self.outputs = compute(self.tokens, *rest)
        self.features = self.outputs.detach()

    def backward(self, learned: Sequence[Tensor], learned_grads: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the tokens; add those of `learned` to `learned_grads`."""
        inputs = [self.tokens, *learned]
        tokens_grad, *others = torch.autograd.grad(self.outputs, inputs, self.grad, allow_unused=True)
        for total, other in zip(learned_grads, others, strict=True):
            if other is not None:
                total += other
        assert tokens_grad is not None
        return tokens_grad


def largest_scale(phi: FeatureMap, k: Tensor, masked: Tensor | None) -> Tensor:
    """Return the map's `key_scale` of all keys [B, H, N, d] that take part, chunk by chunk: [B, H, 1, 1 or m]."""
    scale: Tensor | None = None
    for tokens in _slices(phi.num_features, k):
        part = phi.key_scale(k[:, :, tokens], None if masked is None else masked[:, :, tokens])
        scale = part if scale is None else torch.maximum(scale, part)
    assert scale is not None
    return scale


def _slices(size: int, k: Tensor) -> list[slice]:
    """Return the tokens of each chunk of keys [B, H, N, d] with `size` features."""
    return chunk_slices(k.shape[2], chunk_tokens(k, size))
