"""Sums weighted by squared inner products: the kernel (a^T b)^2 in whichever form is cheaper, with its gradients."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.library import custom_op

from performer_string.ops.polynomial.products import key_sums, linear_gradients, linear_sums, num_products
from performer_string.ops.polynomial.tiles import tiled_gradients, tiled_sums
from performer_string.utils._compat import is_batched_gradient
from performer_string.utils.dtype import without_autocast

# Costs of one element besides those of its matrix products, in multiply-adds.
TILE_COST, PRODUCT_COST = 12, 20

# Costs on a GPU, in multiply-adds of 16 bits of the Triton kernels. They are estimates for an H100, not measurements:
# 200e12 multiply-adds a second in these, 12e12 there in exact float32, 25e12 in torch, 3e12 bytes a second of memory.
GPU_TILE_COST = 56  # cost of a weight, besides its matrix products
GPU_EXACT_COST = 16  # cost of a multiply-add of the kernels in exact float32
GPU_PRODUCT_COST = 700  # cost of a product of two coordinates, written and read in float32
GPU_SUM_COST = 8  # cost of a multiply-add of the linear form, in torch
GPU_LAUNCH_COST = 4e10  # cost of the launches of the linear form


def is_linear_cheaper(a: Tensor, b: Tensor, u: Tensor) -> bool:
    """Return whether the products of pairs are predicted to cost less than N x N weights."""
    (queries, dim), keys, width = a.shape[-2:], b.shape[-2], u.shape[-1]
    weights = queries * keys * (dim + width + TILE_COST)
    return (queries + keys) * num_products(dim) * (width + PRODUCT_COST) < weights


def is_linear_cheaper_on_gpu(q: Tensor, k: Tensor, v: Tensor, exact: bool) -> bool:
    """Return whether the products of pairs are predicted to cost less than the Triton kernels.

    Args:
        q, k, v: queries, keys and values, [B, H, Nq, d], [B, H, Nk, d], [B, H, Nk, dv].
        exact: whether the kernels multiply in exact float32.
    """
    (batch, heads, queries, dim), keys, width = q.shape, k.shape[2], v.shape[3]
    tiles = queries * keys * ((dim + width) * (GPU_EXACT_COST if exact else 1) + GPU_TILE_COST)
    linear = (queries + keys) * num_products(dim) * (width * GPU_SUM_COST + GPU_PRODUCT_COST)
    return batch * heads * linear + GPU_LAUNCH_COST < batch * heads * tiles


def squared_sums(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """Return sum_j (a_i^T b_j)^2 u_j, exactly, in time linear in N where that is cheaper.

    Neither form holds N x N weights or N x D^2 / 2 products, in either pass. Second derivatives, and batches of
    gradients, are computed by plain operations with all N x N weights.

    Args:
        a, b, u: queries, keys and values, [G, Nq, D], [G, Nk, D], [G, Nk, E], of one type.

    Returns:
        Sums, [G, Nq, E].
    """
    if torch.compiler.is_compiling():
        return cast(Tensor, _squared_sums(a, b, u))
    return cast(Tensor, _SquaredSums.apply(a, b, u))


def plain_gradients(gradient: Tensor, a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a, b and u by plain operations, which have derivatives themselves."""
    products = a @ b.mT  # [G, Nq, Nk]
    slopes = 2 * products * (gradient @ u.mT)
    return slopes @ b, slopes.mT @ a, products.square().mT @ gradient


class _SquaredSums(torch.autograd.Function):
    """`squared_sums` in eager mode."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, u: Tensor) -> Tensor:
        sums = key_sums(b, u) if is_linear_cheaper(a, b, u) else None
        ctx.save_for_backward(a, b, u, sums)
        return tiled_sums(a, b, u) if sums is None else linear_sums(a, sums)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        a, b, u, sums = ctx.saved_tensors
        with without_autocast(gradient):
            if torch.is_grad_enabled() or is_batched_gradient(gradient):
                return plain_gradients(gradient, a, b, u)
            if sums is None:
                return tiled_gradients(gradient, a, b, u)
            return linear_gradients(gradient, a, b, u, sums)


@custom_op("performer_string::squared_sums", mutates_args=(), schema="(Tensor a, Tensor b, Tensor u) -> Tensor")
def _squared_sums(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """Return `squared_sums` as one operation of a compiled graph, which a loop over chunks would grow with N."""
    with without_autocast(a):
        return linear_sums(a, key_sums(b, u)) if is_linear_cheaper(a, b, u) else tiled_sums(a, b, u)


@_squared_sums.register_fake
def _fake_sums(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """Return an empty tensor of the shape of `squared_sums`, for the compiler."""
    return a.new_empty(a.shape[0], a.shape[1], u.shape[2])


@custom_op(
    "performer_string::squared_sums_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor a, Tensor b, Tensor u) -> (Tensor, Tensor, Tensor)",
)
def _squared_sums_backward(gradient: Tensor, a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a, b and u."""
    with without_autocast(a):
        if is_linear_cheaper(a, b, u):
            return linear_gradients(gradient, a, b, u, key_sums(b, u))
        return tiled_gradients(gradient, a, b, u)


@_squared_sums_backward.register_fake
def _fake_gradients(gradient: Tensor, a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors of the shapes of the gradients, for the compiler."""
    return torch.empty_like(a), torch.empty_like(b), torch.empty_like(u)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> Any:
    return _squared_sums_backward(gradient, *ctx.saved_tensors)


_squared_sums.register_autograd(_backward, setup_context=_save)
