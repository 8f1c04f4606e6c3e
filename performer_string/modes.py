"""What mode torch works in: autocast, which must not reach backward passes, and function transforms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def without_autocast(backward: F) -> F:
    """Of an autograd function: its backward pass in the types it is given.

    A compiled one runs under the autocast of the forward pass, an eager one called within autocast under that.
    """

    @functools.wraps(backward)
    def exact(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.autocast(gradient.device.type, enabled=False):
            return backward(ctx, gradient)

    return cast(F, exact)


def transformed() -> bool:
    """Whether a transform of `torch.func` is at work, for which the kernels have no rule."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.maybe_current_level() is not None
