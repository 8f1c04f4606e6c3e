"""Backward passes of fused kernels: first derivatives only, in the types that they are given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from performer_string.utils._compat import is_batched_gradient
from performer_string.utils.dtype import without_autocast

F = TypeVar("F", bound=Callable[..., Any])

SECOND_DERIVATIVE = (
    "fused linear attention has first derivatives only, and so have sums with a locality. For second ones write it out "
    "with phi.pair(q, k), or use the feature map polynomial without a locality."
)

BATCHED_GRADIENT = (
    "fused linear attention takes one gradient at a time: leave out vectorize=True or is_grads_batched=True, or use "
    "torch.func.jacrev or torch.func.jacfwd."
)


class _FirstDerivatives(torch.autograd.Function):
    """Return the first `count` tensors as functions of all others, with derivatives that raise an error."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(SECOND_DERIVATIVE)


def first_order(backward: F) -> F:
    """Decorate the backward pass of an autograd function: without autocast, and not differentiable again.

    A compiled backward pass runs under the autocast of the forward pass; an eager one that is called within autocast
    runs under that. Under `create_graph` the gradients depend on the inputs, and their derivative is an error and not
    zero. That holds for an incoming gradient that is a constant, too, as that of a sum is. torch's
    `once_differentiable` lets it pass.

    Args:
        backward: backward pass, a function of the context, the saved tensors and the incoming gradient. It does not
            read `ctx.saved_tensors`, because checkpointing unpacks a tensor only once.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, gradient: Tensor) -> Any:
        if not torch.compiler.is_compiling() and is_batched_gradient(gradient):
            raise RuntimeError(BATCHED_GRADIENT)
        saved = ctx.saved_tensors
        with torch.no_grad(), without_autocast(gradient):
            gradients = backward(ctx, saved, gradient)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return gradients
        sources = [x for x in (gradient, *saved) if x is not None and x.requires_grad]
        tensors = [x for x in gradients if x is not None]
        marked = iter(_FirstDerivatives.apply(len(tensors), *tensors, *sources))
        return tuple(None if x is None else next(marked) for x in gradients)

    return cast(F, wrapped)
