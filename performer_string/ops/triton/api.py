"""Linear attention with the plane rotation inside, fused for NVIDIA GPUs: the entry points to the kernels.

The equations are in `forward` and `backward`. Triton is imported at the first use. With TRITON_INTERPRET=1 in the
environment before that, the kernels run on the CPU, slowly, for tests.

Block sizes are tuned at the first call of each head width, number of features and power of two of tokens, from 1,024
tokens on. That takes a minute or two forward and backward. TRITON_CACHE_AUTOTUNING=1 keeps the choice on disk in
versions of Triton that know it. With one choice of blocks the same inputs give the same bits.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from performer_string.ops.forms import FeatureForm
from performer_string.ops.triton.device import WIDEST, why_other_inputs
from performer_string.ops.triton.operator import fused_forward, run_backward, run_forward
from performer_string.utils.autograd import first_order

HIGHEST_ORDER = 16  # highest order of powers
KERNEL_MODULES = tuple(
    f"performer_string.ops.triton.{name}" for name in ("forward", "backward", "square_forward", "square_backward")
)


@functools.cache
def _import_kernels() -> str | None:
    """Import the kernels, once per process, and return the reason where that fails."""
    try:
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        for module in KERNEL_MODULES:
            importlib.import_module(module)
    except Exception as error:  # of any kind: a missing library is an OSError, another version an AttributeError
        return f"Triton cannot be imported ({type(error).__name__}: {error})"
    return None


@torch.compiler.assume_constant_result
def why_not_importable() -> str | None:
    """Return why the kernels cannot be imported, or None where they can. A compiler takes it for a constant."""
    return _import_kernels()


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
