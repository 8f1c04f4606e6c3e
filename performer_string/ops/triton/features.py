"""Linear attention with the plane rotation inside, fused for NVIDIA GPUs: the entry points to the kernels.

The equations are in `forward` and `backward`. Eager code takes an autograd function, whose call costs least. A compiler
takes the operators `performer_string::linear_attention` and `performer_string::linear_attention_backward`, and does not
look inside.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from performer_string.ops.forms import FeatureForm
from performer_string.ops.triton.device import (
    WIDEST,
    dense_rows,
    product_precision,
    why_not_importable,
    why_other_inputs,
)
from performer_string.utils.autograd import first_order

HIGHEST_ORDER = 16  # highest order of powers
INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? c, Tensor? s, Tensor? bias, Tensor? mask, Tensor weight, int order, "
    "float square"
)


def why_unsupported(q: Tensor, k: Tensor, v: Tensor, form: FeatureForm, *others: Tensor | None) -> str | None:
    """Return why `triton_linear_attention` does not apply to arguments that fit together, or None where it does.

    Any number of tokens and features is supported. Below 16 features or a head width of 32 the matrix units are padded.

    Args:
        q, k, v, form: see `triton_linear_attention`.
        others: its other tensors.

    Returns:
        A reason for a log. What varies from call to call comes after ", not ".
    """
    if (reason := why_other_inputs(q, k, v, [form.weight, *others])) is not None:
        return reason
    if q.shape != k.shape or not q.numel() or not v.numel():
        return f"q, k and v [B, H, N, d], not empty, not {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
    d, dv = q.shape[-1], v.shape[-1]
    if d % 2 or max(d, dv) > WIDEST:
        return f"even head widths up to {WIDEST}, not {d} with values of {dv}"
    if form.weight.requires_grad and torch.is_grad_enabled():
        return "a learned projection has no gradient in the Triton kernels"
    if form.kind == "power" and not 1 <= form.order <= HIGHEST_ORDER:
        return f"powers from 1 to {HIGHEST_ORDER}, not {form.order}"
    return why_not_importable()


def triton_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: FeatureForm,
    planes: tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Linear attention in one pass over the keys and one over the queries, with features held in registers.

    It checks nothing: `why_unsupported` says where it applies.

        o_i = sum_j phi(R_i q_i)^T phi(R_j k_j) v_j / sum_j phi(R_i q_i)^T phi(R_j k_j)

    Sums are in float32, operands of matrix products in the type of the inputs.

    Args:
        q, k: queries and keys, [B, H, N, d], of one type, d even and at most 128, with any strides over B, H and N.
        v: values, [B, H, N, dv].
        form: equation of phi, as `FeatureMap.form` returns it. Its weight gets no gradient.
        planes: cosines and sines of R, as `Rotation.planar` returns them, [..., 1 or H, N, P]; None for the identity.
            Gradients are computed where they are asked for.
        key_mask: mask of the keys, [B, N], True for keys to attend to; the others are not read.
        key_bias: bias of each key, [B, H, N], finite, added to the logarithms of its features; for exponentials.

    Returns:
        Outputs, [B, H, N, dv] in the type of v, heads side by side in memory. The output of a query whose products of
        features are all zero is zero. float32 products follow
        `torch.backends.cuda.matmul.fp32_precision` (or `allow_tf32`).

    Source: arXiv:2009.14794 (FAVOR+); arXiv:2502.02562 (rotations before the features);
    arXiv:2307.08691 (FlashAttention-2: blocks with an online maximum).
    """
    weight, order, square = form.weight, form.order, 0.0
    if form.kind == "exponential":
        weight, order, square = weight * math.log2(math.e), 0, form.square * math.log2(math.e)
    c, s = planes if planes is not None and planes[0].shape[-1] else (None, None)
    if c is not None and s is not None:
        # Broadcast here, so that autograd adds up the gradients of batches and of heads that share their angles.
        c, s = (x.float().expand(*q.shape[:3], -1) for x in (c, s))  # [B, H, N, P]
    weight = weight.to(q.dtype).contiguous()
    inputs = (q, k, v, c, s, key_bias, key_mask, weight, order, square)
    if torch.compiler.is_compiling():
        compiled: Tensor = fused_forward(*inputs)[0]
        return compiled
    out: Tensor = _LinearAttention.apply(*inputs)
    return out


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


class _LinearAttention(torch.autograd.Function):
    """Kernels with their gradients. The weight, the mask and the constants get none."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        out, *rest = run_forward(*inputs)
        *tensors, ctx.order, ctx.square = inputs
        ctx.save_for_backward(*tensors, out, *rest)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], dout: Tensor) -> tuple[Tensor | None, ...]:
        inputs, results = saved[:8], saved[8:]
        learned = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]
        return *run_backward(dout, *inputs, ctx.order, ctx.square, results, learned), None, None, None, None


@custom_op(
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


@custom_op(
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
