"""What mode torch works in: autocast and second derivatives, which must not reach backward passes; transforms and
export, for which kernels have no rule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

F = TypeVar("F", bound=Callable[..., Any])


ONCE = (
    "fused linear attention has first derivatives only. For second ones write it out with phi.pair(q, k), or use the "
    "feature map polynomial."
)


BATCHED = (
    "fused linear attention takes one gradient at a time: leave out vectorize=True or is_grads_batched=True, or use "
    "torch.func.jacrev or torch.func.jacfwd."
)


class _Once(torch.autograd.Function):
    """The first `count` tensors as functions of all others, with derivatives that are an error."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(ONCE)


def first_order(backward: F) -> F:
    """Of an autograd function: its backward pass, in the types it is given, and differentiable no further.

    A compiled one runs under the autocast of the forward pass, an eager one called within autocast under that. Under
    `create_graph` its results depend on the inputs, also where the incoming gradient is a constant (as that of a sum
    is, which torch's `once_differentiable` passes by): a derivative of them is an error, and not zero.
    """

    @functools.wraps(backward)
    def exact(ctx: Any, gradient: Tensor) -> Any:
        if not torch.compiler.is_compiling() and torch._C._functorch.is_legacy_batchedtensor(gradient):
            raise RuntimeError(BATCHED)
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            found = backward(ctx, gradient)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return found
        sources = [x for x in (gradient, *ctx.saved_tensors) if x is not None and x.requires_grad]
        given = [x for x in found if x is not None]
        marked = iter(_Once.apply(len(given), *given, *sources))
        return tuple(None if x is None else next(marked) for x in found)

    return cast(F, exact)


def transformed() -> bool:
    """Whether a transform of `torch.func` or forward differentiation is at work, for which the kernels have no rule."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def unseen() -> bool:
    """Whether values cannot be looked at, nor results kept: under a compiler or a transform."""
    return torch.compiler.is_compiling() or transformed()


def plain() -> bool:
    """Whether attention is to be plain operations on whole tensors: under transforms, and for an exported graph, which
    is to serve any batch."""
    # Not is_exporting(), which torch 2.11 takes for true in every compiled graph.
    return torch.compiler._is_exporting_flag or transformed()
