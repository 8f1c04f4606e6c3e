"""Features of a slab of tokens at a time, so that those of all tokens, N x m, are never held.

A sum over a lattice asks for the features of some tokens and says later what their gradient is; in between nothing is
kept but the tokens themselves, and the features are computed again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from performer_string.features import FeatureMap
from performer_string.features.base import check_draw, versions
from performer_string.kernels.chunked import pieces

SLAB = {"cpu": 2**21, "cuda": 2**26}  # features held at a time: on a CPU the fastest of the sizes tried


def slab_size(device: torch.device) -> int:
    return SLAB.get(device.type, SLAB["cpu"])


class Source(Protocol):
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

    def keys(self, k: Tensor, hidden: Tensor | None) -> Tensor:
        """Of keys; zero where hidden, [B, 1, T, 1] or [.., B, T, 1]."""
        ...

    def of(self, heads: list[int] | int) -> Source:
        """Of some of its heads, or of one."""
        ...


class Given:
    """Features that are held anyway: the tokens are their own features, and all keys take part."""

    learned: tuple[Tensor, ...] = ()

    def __init__(self, size: int):
        self.size = size

    def queries(self, q: Tensor) -> Tensor:
        return q

    def keys(self, k: Tensor, hidden: Tensor | None) -> Tensor:
        return k

    def of(self, heads: list[int] | int) -> Source:
        return self


class Made:
    """Features of a map.

    Args:
        scale: the map's `key_scale` of all keys, [B, H, 1, 1 or m]; without the axis of heads for one head.
        heads: of the map, which the axis of heads stands for; an integer for one head.
        draw: versions of the map's buffers at the forward pass, those of now by default.
    """

    def __init__(self, phi: FeatureMap, scale: Tensor, heads: list[int] | int, draw: list[int] | None = None):
        self.phi, self.scale, self.heads, self.size = phi, scale, heads, phi.num_features
        self.draw = versions(phi) if draw is None else draw
        self.learned = tuple(x for x in itertools.chain(phi.parameters(), phi.buffers()) if x.requires_grad)

    def queries(self, q: Tensor) -> Tensor:
        check_draw(self.phi, self.draw)
        return self.phi.scaled_queries(q, self.scale, self.heads)

    def keys(self, k: Tensor, hidden: Tensor | None) -> Tensor:
        check_draw(self.phi, self.draw)
        return self.phi.scaled_keys(k, self.scale, hidden, self.heads)

    def of(self, heads: list[int] | int) -> Source:
        assert isinstance(self.heads, list)
        own = self.heads[heads] if isinstance(heads, int) else [self.heads[h] for h in heads]
        return Made(self.phi, self.scale[:, heads], own, self.draw)


class Again:
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


def largest_scale(phi: FeatureMap, k: Tensor, hidden: Tensor | None) -> Tensor:
    """The map's `key_scale` of all keys [B, H, N, d], slab by slab."""
    scale: Tensor | None = None
    for tokens in _walk(phi.num_features, k):
        part = phi.key_scale(k[:, :, tokens], None if hidden is None else hidden[:, :, tokens])
        scale = part if scale is None else torch.maximum(scale, part)
    assert scale is not None
    return scale


def key_sums(source: Source, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    """sum_j phi(k_j) v_j^T of keys [B, H, N, d] and values [B, H, N, e], slab by slab: [B, H, m, e]."""

    def part(k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        return source.keys(k, hidden).mT @ v

    walk = _walk(source.size, k)
    sizes = [tokens.stop - tokens.start for tokens in walk]
    masks = [None if hidden is None else hidden[:, :, tokens] for tokens in walk]
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
    return pieces(k.shape[2], max(1, slab_size(k.device) // (k.shape[0] * k.shape[1] * size)))
