"""Sums weighted by squared inner products, by N x N weights of which one tile at a time is held."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from performer_string.utils.numerics import chunk_slices

# Weights held at a time: 512 KiB of float32 for each thread, the fastest of the sizes tried.
CACHE_WEIGHTS = 2**17
# Weights held at a time on other devices, where a launch costs more than memory.
DEVICE_WEIGHTS = 2**26


def tiles(a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of groups and of queries whose weights, for all keys, fit into the cache.

    Args:
        a, b: queries and keys, [G, Nq, D], [G, Nk, D].
    """
    (groups, queries, _), keys = a.shape, b.shape[1]
    budget = CACHE_WEIGHTS * torch.get_num_threads() if a.device.type == "cpu" else DEVICE_WEIGHTS
    rows = max(1, min(queries, budget // keys))
    for group in chunk_slices(groups, max(1, budget // (rows * keys))):
        for chunk in chunk_slices(queries, rows):
            yield group, chunk


def tiled_sums(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """Return sum_j (a_i^T b_j)^2 u_j.

    Args:
        a, b, u: queries, keys and values, [G, Nq, D], [G, Nk, D], [G, Nk, E], of one type.

    Returns:
        Sums, [G, Nq, E].
    """
    out = a.new_empty(*a.shape[:2], u.shape[-1])
    for group, rows in tiles(a, b):
        weights = torch.bmm(a[group, rows], b[group].mT).square_()  # [g, r, Nk]
        out[group, rows] = torch.bmm(weights, u[group])
    return out


def tiled_gradients(gradient: Tensor, a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a, b and u from that of `tiled_sums`, [G, Nq, E]."""
    for_a, for_b, for_u = torch.empty_like(a), torch.zeros_like(b), torch.zeros_like(u)
    for group, rows in tiles(a, b):
        queries, keys, upstream = a[group, rows], b[group], gradient[group, rows]
        products = torch.bmm(queries, keys.mT)  # [g, r, Nk]
        slopes = torch.bmm(upstream, u[group].mT).mul_(products)
        for_u[group].baddbmm_(products.square_().mT, upstream)
        for_a[group, rows] = torch.bmm(slopes, keys).mul_(2)
        for_b[group].baddbmm_(slopes.mT, queries, alpha=2)
    return for_a, for_b, for_u
