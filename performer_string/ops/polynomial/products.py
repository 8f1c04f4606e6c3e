"""Sums weighted by squared inner products in time linear in N, by the products of pairs of coordinates.

    (a^T b)^2 = sum_t w_t sum_i (a_i a_(i+t)) (b_i b_(i+t)),   t = 0 .. D/2,   i + t modulo D

Each pair i, j occurs once, at t = j - i modulo D. Its weight w is 1 for t = 0 and 2 for others. For even D, the pairs
at half the circle occur twice, and have w = 1. Products are held for one chunk of tokens at a time, with tokens as the
last axis. Those of one t are then a product of two contiguous blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from performer_string.utils.numerics import chunk_slices

# Products held at a time: 2 MiB of float32 for each thread.
CACHE_PRODUCTS = 2**19
# Products held at a time on other devices, where a launch costs more than memory.
DEVICE_PRODUCTS = 2**26


def num_products(dim: int) -> int:
    """Return the number of products of a vector of D coordinates."""
    return dim * (dim // 2 + 1)


def pair_weights(dim: int, like: Tensor) -> Tensor:
    """Return w for each product, [m, 1], in the type and on the device of a tensor."""
    weights = like.new_full((dim // 2 + 1, dim), 2.0)
    weights[0] = 1.0
    if dim % 2 == 0:
        weights[-1] = 1.0
    return weights.flatten()[:, None]


def chunks(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of groups and of tokens of x [G, N, D] whose products fit into the cache."""
    groups, tokens, dim = x.shape
    budget = CACHE_PRODUCTS * torch.get_num_threads() if x.device.type == "cpu" else DEVICE_PRODUCTS
    budget = max(1, budget // num_products(dim))
    size = max(1, min(tokens, max(64, budget // 64 * 64)))
    for group in chunk_slices(groups, max(1, budget // size)):
        for chunk in chunk_slices(tokens, size):
            yield group, chunk


def twice(x: Tensor) -> Tensor:
    """Return the coordinates of a chunk [g, C, D] twice, tokens last: [g, 2 D, C]."""
    return torch.cat([x, x], dim=-1).mT.contiguous()


def products(doubled: Tensor) -> Tensor:
    """Return x_i x_(i+t) of `twice`, [g, m, C]."""
    dim = doubled.shape[1] // 2
    shifted = doubled.unfold(1, dim, 1)[:, : dim // 2 + 1].mT  # [g, 2 D, C] -> [g, D + 1, C, D] -> [g, T, D, C]
    return (doubled[:, None, :dim] * shifted).flatten(1, 2)


def products_gradient(gradient: Tensor, doubled: Tensor) -> Tensor:
    """Return the gradient of a chunk [g, C, D] from that of its `products`, [g, m, C]."""
    dim = doubled.shape[1] // 2
    x = doubled[:, :dim]
    both = torch.zeros_like(doubled)
    first = both[:, :dim]
    for shift, part in enumerate(gradient.unflatten(1, (-1, dim)).unbind(1)):  # [g, D, C] each
        first.addcmul_(part, doubled[:, shift : shift + dim])
        both[:, shift : shift + dim].addcmul_(part, x)
    return (first + both[:, dim:]).mT


def key_sums(b: Tensor, u: Tensor) -> Tensor:
    """Return the sums of products of keys [G, Nk, D] times u [G, Nk, E], with the weights w: [G, m, E]."""
    sums = b.new_zeros(len(b), num_products(b.shape[-1]), u.shape[-1])
    for group, tokens in chunks(b):
        sums[group].baddbmm_(products(twice(b[group, tokens])), u[group, tokens])
    return sums.mul_(pair_weights(b.shape[-1], b))


def linear_sums(a: Tensor, sums: Tensor) -> Tensor:
    """Return sum_j (a_i^T b_j)^2 u_j.

    Args:
        a: queries, [G, Nq, D].
        sums: sums over the keys from `key_sums`, [G, m, E].

    Returns:
        Sums, [G, Nq, E].
    """
    out = a.new_empty(*a.shape[:2], sums.shape[-1])
    for group, tokens in chunks(a):
        out[group, tokens] = torch.bmm(products(twice(a[group, tokens])).mT, sums[group])
    return out


def linear_gradients(gradient: Tensor, a: Tensor, b: Tensor, u: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a, b and u.

    Args:
        gradient: gradient of `linear_sums`, [G, Nq, E].
        a, b, u: queries, keys and values, [G, Nq, D], [G, Nk, D], [G, Nk, E].
        sums: sums over the keys from `key_sums`.
    """
    for_a, for_b, for_u, for_sums = (torch.empty_like(x) for x in (a, b, u, sums))
    for_sums.zero_()
    for group, tokens in chunks(a):
        doubled, upstream = twice(a[group, tokens]), gradient[group, tokens]
        for_sums[group].baddbmm_(products(doubled), upstream)
        for_a[group, tokens] = products_gradient(torch.bmm(sums[group], upstream.mT), doubled)
    for_sums.mul_(pair_weights(a.shape[-1], a))
    for group, tokens in chunks(b):
        doubled, values = twice(b[group, tokens]), u[group, tokens]
        for_u[group, tokens] = torch.bmm(products(doubled).mT, for_sums[group])
        for_b[group, tokens] = products_gradient(torch.bmm(for_sums[group], values.mT), doubled)
    return for_a, for_b, for_u
