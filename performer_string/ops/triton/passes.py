"""The forward and the backward pass of the fused kernels, with tensors in the order and memory that they take."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from performer_string.ops.triton.device import dense_rows, product_precision


def _kernel_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c: Tensor | None,
    s: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    weight: Tensor,
) -> tuple[Any, ...]:
    """Return tensors in the order and memory that the kernels take."""
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    if c is not None and s is not None and not (c.stride() == s.stride() and c.stride(-1) == 1):
        c, s = c.contiguous(), s.contiguous()
    mask = None if mask is None else dense_rows(mask)
    bias = None if bias is None else (bias.float() * math.log2(math.e)).contiguous()
    return q, k, v, weight, c, s, bias, mask


def run_forward(q: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Return the output, and what the backward pass needs besides the inputs.

    Args:
        q: queries.
        inputs: other inputs: k, v, c, s, bias, mask, weight, order and square, as `triton_linear_attention` prepares
            them.
    """
    from performer_string.ops.triton import forward as kernels

    *tensors, order, square = inputs
    options = order, square, product_precision(q)
    with torch.cuda.device_of(q):
        return kernels.forward(*(*_kernel_inputs(q, *tensors), *options))


def run_backward(dout: Tensor, *inputs: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v, c, s and bias.

    Args:
        dout: gradient of the output.
        inputs: inputs of `run_forward`, its results, and whether c and s get gradients.
    """
    from performer_string.ops.triton import backward as kernels

    *tensors, order, square, saved, learned = inputs
    options = saved, order, square, product_precision(tensors[0]), learned
    with torch.cuda.device_of(dout):
        return kernels.backward(*(dense_rows(dout), *_kernel_inputs(*tensors), *options))
