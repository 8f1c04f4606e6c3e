"""The passes of the fused kernels, and an operator of them for `torch.compile` and `torch.export`.

A compiler does not look inside of an operator. Eager code takes the autograd function of `api` instead, whose call
costs less. This module defines the operators
`performer_string::linear_attention` and `performer_string::linear_attention_backward` when it is imported.
"""

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


INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? c, Tensor? s, Tensor? bias, Tensor? mask, Tensor weight, int order, "
    "float square"
)


@torch.library.custom_op(
    "performer_string::linear_attention",
    mutates_args=(),
    schema=f"({INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def fused_forward(*inputs: Any) -> tuple[Tensor, ...]:
    """Run the forward pass, with the arguments of the autograd function."""
    return run_forward(*inputs)


@fused_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, c: Any, s: Any, bias: Any, mask: Any, weight: Tensor, *options: Any
) -> tuple[Tensor, ...]:
    (batch, heads, tokens, _), dv, m = q.shape, v.shape[-1], weight.shape[1]
    out = q.new_empty(batch, tokens, heads, dv).transpose(1, 2)
    norms = q.new_empty(batch, heads, tokens, dtype=torch.float32)
    levels, peaks = (q.new_empty(batch, heads, m, dtype=torch.float32) for _ in range(2))
    return out, norms, q.new_empty(batch, heads, m, dv), levels, peaks


@torch.library.custom_op(
    "performer_string::linear_attention_backward",
    mutates_args=(),
    schema=f"(Tensor dout, {INPUTS}, Tensor[] saved, bool learned) -> Tensor[]",
)
def fused_backward(dout: Tensor, *arguments: Any) -> list[Tensor]:
    """Run the backward pass, and leave out gradients that are None."""
    *inputs, saved, learned = arguments
    return [x for x in run_backward(dout, *inputs, tuple(saved), learned) if x is not None]


@fused_backward.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, c: Any, s: Any, bias: Any, *rest: Any) -> list[Tensor]:
    planes = [c.new_empty(c.shape), c.new_empty(c.shape)] if rest[-1] else []
    return [*map(torch.empty_like, (q, k, v)), *planes, *([] if bias is None else [torch.empty_like(bias)])]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.order, ctx.square = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors  # read once: checkpointing unpacks a tensor one time
    inputs, saved = tensors[:8], tensors[8:]
    learned = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]
    gradients = iter(fused_backward(dout, *inputs, ctx.order, ctx.square, list(saved), learned))
    dq, dk, dv = next(gradients), next(gradients), next(gradients)
    dc, ds = (next(gradients), next(gradients)) if learned else (None, None)
    return dq, dk, dv, dc, ds, next(gradients, None), None, None, None, None


fused_forward.register_autograd(_differentiate, setup_context=_save)
