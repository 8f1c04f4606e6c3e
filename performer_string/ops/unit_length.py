"""Queries and keys of a given length: y = f x / |x|."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.utils._compat import is_batched_gradient, needs_plain_operations
from performer_string.utils.dtype import full_precision, without_autocast


def least_length(dtype: torch.dtype) -> float:
    """Return the length that shorter vectors are divided by, in place of their own."""
    return max(1e-12, torch.finfo(dtype).tiny)


def with_length(x: Tensor, factor: Tensor | None = None) -> Tensor:
    """Return vectors along the last axis with the length of a factor.

    Args:
        x: queries or keys, [B, H, N, d].
        factor: factor f, which broadcasts to [B, H, N, 1]; None for unit length.

    Returns:
        f x / max(|x|, eps), [B, H, N, d].
    """
    plain = torch.compiler.is_compiling() or needs_plain_operations() or x.dtype not in (torch.float32, torch.float64)
    if plain or not (factor is None or factor.dtype == x.dtype):
        return with_length_plainly(x, factor)
    if torch.is_grad_enabled() and (x.requires_grad or (factor is not None and factor.requires_grad)):
        return cast(Tensor, _WithLength.apply(x, factor))
    return scale_to_length(x, lengths(x), factor)


def with_length_plainly(x: Tensor, factor: Tensor | None = None) -> Tensor:
    """Return `with_length` by operations that have derivatives of every order, and that compilers fuse.

    Vectors of 16 bits are normalised in float32, whose squares neither round nor overflow, and rounded once.
    """
    exact = full_precision(x)
    unit = F.normalize(exact, dim=-1, eps=least_length(exact.dtype))
    if factor is None:
        return unit.to(x.dtype)
    return (unit * full_precision(factor)).to(torch.promote_types(x.dtype, factor.dtype))


def lengths(x: Tensor) -> Tensor:
    """Return |x|: [..., d] -> [..., 1]."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def scale_to_length(x: Tensor, length: Tensor, factor: Tensor | None) -> Tensor:
    """Return x times f / max(|x|, eps)."""
    length = length.clamp_min(least_length(x.dtype))
    return x / length if factor is None else x * (factor / length)


class _WithLength(torch.autograd.Function):
    """`with_length` with its gradients, which autograd would compute in three times as many passes.

    With u = x / |x| they are

        dx = f / |x| (dy - u (u.dy)),    df = sum u.dy

    Below eps the length is a constant, and dx = f / eps dy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor | None) -> Tensor:
        length = lengths(x)
        ctx.save_for_backward(x, length, factor)
        return scale_to_length(x, length, factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, length, factor = ctx.saved_tensors
        with without_autocast(x):
            if torch.is_grad_enabled():
                length = lengths(x)  # as a function of x, for second derivatives
            least = least_length(x.dtype)
            divisor = length.clamp_min(least)
            along = (x * gradient).sum(-1, keepdim=True) / divisor  # u.dy, [..., 1]
            for_factor = None if factor is None else along.sum_to_size(factor.shape)
            scale = 1 / divisor if factor is None else factor / divisor
            towards = scale * (along / divisor).masked_fill(length < least, 0.0)
            if torch.is_grad_enabled() or is_batched_gradient(gradient):
                return gradient * scale - x * towards, for_factor
            return torch.mul(gradient, scale).addcmul_(x, towards, value=-1), for_factor
