"""Attention with a polynomial kernel of degree 2 by N x N weights, fused for NVIDIA GPUs: the entry points.

The equations are in `square_forward` and `square_backward`. The module defines the operators
`performer_string::square_attention` and `performer_string::square_attention_backward` for compiled graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from performer_string.ops.forms import PolynomialKernel
from performer_string.ops.polynomial.attention import summed_attention
from performer_string.ops.triton.device import (
    WIDEST,
    dense_rows,
    product_precision,
    why_not_importable,
    why_other_inputs,
)
from performer_string.utils._compat import is_batched_gradient
from performer_string.utils.dtype import without_autocast

INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, float scale, bool lower"


def why_square_unsupported(q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None) -> str | None:
    """Return why `triton_square_attention` does not apply to arguments that fit together, or None where it does.

    Args:
        q, k, v: see `triton_square_attention`.
        others: its other tensors.

    Returns:
        A reason for a log. What varies from call to call comes after ", not ".
    """
    if (reason := why_other_inputs(q, k, v, others)) is not None:
        return reason
    if not q.numel() or not v.numel():
        return f"q, k and v that are not empty, not {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
    in_tf32 = q.dtype == torch.float32 and product_precision(q) == "tf32"
    widest = WIDEST // 2 if in_tf32 else WIDEST  # for the shared memory of any GPU
    if max(q.shape[-1], v.shape[-1]) > widest:
        return f"head widths up to {widest}, not {q.shape[-1]} with values of {v.shape[-1]}"
    return why_not_importable()


def triton_square_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: PolynomialKernel,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Attention with a polynomial kernel of rotated queries and keys, by N x N weights of which blocks are held.

    Sums are in float32, operands of matrix products in the type of the inputs. Second derivatives, and batches of
    gradients, are computed by plain operations. Arguments are not checked: `why_square_unsupported` says where it
    applies.

    Args:
        q, k: queries and keys, [B, H, Nq, d] and [B, H, Nk, d], of one type, d at most 128, with any strides over B, H
            and N.
        v: values, [B, H, Nk, dv].
        kernel: polynomial kernel of rotated queries and keys.
        key_mask: mask of the keys, [B, Nk], True for keys to attend to; the others are not read.
        key_bias: bias b of the keys, [B, H, Nk], finite and at most 0. The kernel of key j is multiplied by exp(b_j).

    Returns:
        Outputs, [B, H, Nq, dv] in the type of v, heads side by side in memory; zero where the sum of weights is zero.

    Source: arXiv:2307.08691 (FlashAttention-2: blocks of queries and keys).
    """
    inputs = (q, k, v, key_bias, key_mask, kernel.scale, kernel.lower)
    if torch.compiler.is_compiling():
        compiled: Tensor = _square_attention(*inputs)[0]
        return compiled
    out: Tensor = _SquareAttention.apply(*inputs)
    return out


def _square_inputs(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None) -> tuple[Any, ...]:
    """Return tensors in the memory that the kernels take, with the roots of the keys' weights for the bias."""
    roots = None if bias is None else (bias.float() / 2).exp().contiguous()
    return dense_rows(q), dense_rows(k), dense_rows(v), roots, None if mask is None else dense_rows(mask)


def run_square_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, and what the backward pass needs besides the inputs q, k, v, bias, mask, scale and lower."""
    from performer_string.ops.triton import square_forward as kernels

    *tensors, scale, lower = inputs
    options = scale, lower, product_precision(tensors[0])
    with torch.cuda.device_of(tensors[0]):
        return kernels.forward(*(*_square_inputs(*tensors), *options))


def run_square_backward(dout: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and bias from that of the output, the inputs and what the forward pass saved."""
    from performer_string.ops.triton import square_backward as kernels

    *tensors, scale, lower, saved = inputs
    options = saved, scale, lower, product_precision(tensors[0])
    with torch.cuda.device_of(dout):
        dq, dk, dv, dbias = kernels.backward(*(dense_rows(dout), *_square_inputs(*tensors), *options))
    return dq, dk, dv, None if dbias is None else dbias.to(tensors[3].dtype)


def gradients_by_sums(dout: Tensor, inputs: tuple[Any, ...]) -> list[Tensor | None]:
    """Return the gradients of q, k, v and bias by plain operations, which have derivatives themselves."""
    q, k, v, bias, mask, scale, lower = inputs
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, because q and k may be one tensor, or one may depend on the other.
        leaves: list[Any] = [
            x if x is None else x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            for x in (q, k, v, bias)
        ]
        q, k, v, bias = leaves
        out = summed_attention(q, k, v, PolynomialKernel(scale, lower), mask, bias)
        wanted = [x for x in leaves if x is not None]
        gradients = iter(torch.autograd.grad(out, wanted, dout, create_graph=create_graph))
    return [None if x is None else next(gradients) for x in leaves]


class _SquareAttention(torch.autograd.Function):
    """The kernels with their gradients, in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        out, *rest = run_square_forward(*inputs)
        *tensors, ctx.scale, ctx.lower = inputs
        ctx.save_for_backward(*tensors, out, *rest)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # read once: checkpointing unpacks a tensor one time
        inputs, saved = (*tensors[:5], ctx.scale, ctx.lower), tensors[5:]
        with without_autocast(dout):
            if torch.is_grad_enabled() or is_batched_gradient(dout):
                return *gradients_by_sums(dout, inputs), None, None, None
            return *run_square_backward(dout, *inputs, saved), None, None, None


@custom_op("performer_string::square_attention", mutates_args=(), schema=f"({INPUTS}) -> (Tensor, Tensor, Tensor)")
def _square_attention(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run the forward pass as one operation of a compiled graph."""
    return run_square_forward(*inputs)


@_square_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    (batch, heads, queries, _), width = q.shape, v.shape[-1]
    out = q.new_empty(batch, queries, heads, width).transpose(1, 2)
    single = q.new_empty(batch, heads, queries, dtype=torch.float32)
    return out, single, q.new_empty(batch, heads, dtype=torch.float32)


@custom_op(
    "performer_string::square_attention_backward",
    mutates_args=(),
    schema=f"(Tensor dout, {INPUTS}, Tensor[] saved) -> Tensor[]",
)
def _square_attention_backward(dout: Tensor, *arguments: Any) -> list[Tensor]:
    """Run the backward pass, and leave out the bias where there is none."""
    with without_autocast(dout):
        return [x for x in run_square_backward(dout, *arguments) if x is not None]


@_square_attention_backward.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any) -> list[Tensor]:
    like = [torch.empty_like(dense_rows(x)) for x in (q, k, v)]
    return [*like, *([] if bias is None else [bias.new_empty(bias.shape)])]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, ctx.lower = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors  # read once, as above
    inputs, saved = tensors[:5], list(tensors[5:])
    gradients = iter(_square_attention_backward(dout, *inputs, ctx.scale, ctx.lower, saved))
    return next(gradients), next(gradients), next(gradients), next(gradients, None), None, None, None


_square_attention.register_autograd(_differentiate, setup_context=_save)
