"""Linear layers in bf16 on a CPU without bf16 units, where torch emulates them at a tenth of float32's speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from performer_string.utils._compat import has_bf16_products


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What a bf16 unit computes, in float32: operands rounded to bf16, sums in float32, the result rounded to bf16.

    Gradients are computed likewise, since each rounding rounds the gradient that comes back through it.
    """
    with torch.autocast("cpu", enabled=False):
        rounded = None if bias is None else bias.bfloat16().float()
        return F.linear(x.bfloat16().float(), weight.bfloat16().float(), rounded).bfloat16()


class _RoundedProducts(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        own = func is F.linear and in_bf16(args[0])
        return (rounded_linear if own else func)(*args, **(kwargs or {}))


def in_bf16(x: Tensor) -> bool:
    """Whether a CPU's linear layer of x would be in bf16."""
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return autocast or x.dtype == torch.bfloat16


def rounded_products(weight: Tensor) -> AbstractContextManager[Any]:
    """While it lasts, `rounded_linear` in place of linear layers that would be emulated; elsewhere nothing.

    Args:
        weight: one of the model's, for its device and type. A model in float32 is left alone: the exchange goes through
            every function that torch is asked for.
    """
    emulated = in_bf16(weight) and not has_bf16_products(weight.device)
    return _RoundedProducts() if emulated else nullcontext()
