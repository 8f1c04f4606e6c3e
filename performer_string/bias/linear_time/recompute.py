"""Features of a slab of tokens at a time, so that those of all tokens, N x m, are never held.

A sum over a grid asks for the features of some tokens and says later what their gradient is; in between nothing is
kept but the tokens themselves, and the features are computed again.
"""

from __future__ import annotations

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

SLAB = {"cpu": 2**21, "cuda": 2**26}  # features held at a time: on a CPU the fastest of the sizes tried


def slab_size(device: torch.device) -> int:
    return SLAB.get(device.type, SLAB["cpu"])


class FeatureSource(Protocol):
    """Where a sum gets its features from, for the heads that it works on.

    Attributes:
        size: m.
        learned: tensors beside the tokens that features depend on and that need a gradient.
    """

    size: int
    learned: tuple[Tensor, ...]

    def queries(self, q: Tensor) -> Tensor:
        """Of queries [B, H, T, d], or [.., B, T, d] of one head: [.., m]."""
        ...

    def keys(self, k: Tensor, masked: Tensor | None) -> Tensor:
        """Of keys; zero where masked, [B, 1, T, 1] or [.., B, T, 1]."""
        ...

    def of(self, heads: list[int] | int) -> FeatureSource:
        """Of some of its heads, or of one."""
        ...


class StoredFeatures:
    """Features that are held anyway: the tokens are their own features, and all keys take part."""

    learned: tuple[Tensor, ...] = ()

    def __init__(self, size: int):
        self.size = size

    def queries(self, q: Tensor) -> Tensor:
        return q

    def keys(self, k: Tensor, masked: Tensor | None) -> Tensor:
        return k

    def of(self, heads: list[int] | int) -> FeatureSource:
        return self


class RecomputedFeatures:
    """Features of a map, with the weights and the draw that it had in the forward pass.

    Args:
        scale: the map's `key_scale` of all keys, [B, H, 1, 1 or m]; without the axis of heads for one head.
        heads: of the map, which the axis of heads stands for; an integer for one head.
        held: tensors of the map, those of now by default.
        drawn: versions of those without a gradient, likewise.
    """

    def __init__(
        self,
        phi: FeatureMap,
        scale: Tensor,
        heads: list[int] | int,
        held: dict[str, Tensor] | None = None,
        drawn: list[int] | None = None,
    ):
        self.phi, self.scale, self.heads, self.size = phi, scale, heads, phi.num_features
        self.held = tensors_of(phi) if held is None else held
        self.learned = tuple(x for x in self.held.values() if x.requires_grad)
        self.fixed = [x for x in self.held.values() if not x.requires_grad]
        self.drawn = versions(self.fixed) if drawn is None else drawn

    def queries(self, q: Tensor) -> Tensor:
        return self.features("scaled_queries", q, self.scale, self.heads)

    def keys(self, k: Tensor, masked: Tensor | None) -> Tensor:
        return self.features("scaled_keys", k, self.scale, masked, self.heads)

    def features(self, method: str, *given: Any) -> Tensor:
        check_draw(self.fixed, self.drawn)
        now = tensors_of(self.phi)
        if all(now[name] is x for name, x in self.held.items()):
            return cast(Tensor, getattr(self.phi, method)(*given))
        # As after `functional_call`, which has given the map its own weights back before the backward pass.
        lent = {f"phi.{name}": x for name, x in self.held.items()}
        return cast(Tensor, functional_call(_Method(self.phi, method), lent, given))

    def of(self, heads: list[int] | int) -> FeatureSource:
        assert isinstance(self.heads, list)
        own = self.heads[heads] if isinstance(heads, int) else [self.heads[h] for h in heads]
        return RecomputedFeatures(self.phi, self.scale[:, heads], own, self.held, self.drawn)


class _Method(nn.Module):
    """A map's method as a module's `forward`."""

    def __init__(self, phi: FeatureMap, method: str):
        super().__init__()
        self.phi, self.method = phi, method

    def forward(self, *given: Any) -> Tensor:
        return cast(Tensor, getattr(self.phi, self.method)(*given))


class Recomputed:
    """Features computed again in a backward pass: `features`, and what their gradient is to the tokens."""

    def __init__(self, make: Callable[..., Tensor], tokens: Tensor, *rest: Tensor | None):
        with torch.enable_grad():
            self.tokens = tokens.detach().requires_grad_()
            self.made = make(self.tokens, *rest)
        self.features = self.made.detach()

    def back(self, gradient: Tensor, learned: Sequence[Tensor], sums: Sequence[Tensor]) -> Tensor:
        """The gradient of the tokens; those of what is learned are added to `sums`."""
        own, *others = torch.autograd.grad(self.made, [self.tokens, *learned], gradient, allow_unused=True)
        for total, other in zip(sums, others, strict=True):
            if other is not None:
                total += other
        assert own is not None
        return own


def largest_scale(phi: FeatureMap, k: Tensor, masked: Tensor | None) -> Tensor:
    """The map's `key_scale` of all keys [B, H, N, d], slab by slab."""
    scale: Tensor | None = None
    for tokens in _walk(phi.num_features, k):
        part = phi.key_scale(k[:, :, tokens], None if masked is None else masked[:, :, tokens])
        scale = part if scale is None else torch.maximum(scale, part)
    assert scale is not None
    return scale


def key_sums(source: FeatureSource, k: Tensor, v: Tensor, masked: Tensor | None) -> Tensor:
    """sum_j phi(k_j) v_j^T of keys [B, H, N, d] and values [B, H, N, e], slab by slab: [B, H, m, e]."""

    def part(k: Tensor, v: Tensor, masked: Tensor | None) -> Tensor:
        return source.keys(k, masked).mT @ v

    walk = _walk(source.size, k)
    sizes = [tokens.stop - tokens.start for tokens in walk]
    masks = [None if masked is None else masked[:, :, tokens] for tokens in walk]
    total: Tensor | None = None
    for given in zip(k.split(sizes, dim=2), v.split(sizes, dim=2), masks, strict=True):  # slices have large gradients
        if torch.is_grad_enabled():
            found = checkpoint(part, *given, use_reentrant=False, preserve_rng_state=False)
        else:
            found = part(*given)
        total = found if total is None else total + found
    assert total is not None
    return total


def _walk(size: int, k: Tensor) -> list[slice]:
    return chunk_slices(k.shape[2], max(1, slab_size(k.device) // (k.shape[0] * k.shape[1] * size)))
