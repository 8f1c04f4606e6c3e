"""Linear attention in chunks of tokens, as an autograd function and as one operation of a compiled graph.

A compiler would unroll the loop over the chunks. Its graph would grow with the batch and the tokens, and be compiled
again for each size. In a compiled graph the loop is therefore the operation `performer_string::chunked_attention`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from performer_string.ops.chunked.loop import ChunkInputs, ChunkLoop
from performer_string.ops.forms import FeatureForm
from performer_string.utils.autograd import first_order
from performer_string.utils.dtype import without_autocast


def chunked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: FeatureForm,
    planes: tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Linear attention under a plane rotation, without N x m features.

        o_i = sum_j phi(R_i q_i)^T phi(R_j k_j) v_j / sum_j phi(R_i q_i)^T phi(R_j k_j)

    Args:
        q, k, v: queries, keys and values, [B, H, N, d].
        form: equation of phi, as `FeatureMap.form` returns it.
        planes: cosines and sines of R, [..., 1 or H, N, P], as `Rotation.planar` returns them; None for the identity.
        key_mask: mask of the keys, [B, N], True for keys to attend to.
        key_bias: bias of each key, [B, H, N], finite, added to the logarithms of its features; for exponentials.

    Returns:
        Outputs, [B, H, N, d_v] in the type of v. First derivatives go to q, k, v, the bias, the planes and the map's
        weight.
    """
    cos = sin = None
    if planes is not None and planes[0].shape[-1]:
        cos, sin = planes
        # [1 or H, N, P] -> [1 or H, 1, N, P]; [1 or B, 1 or H, N, P] -> [1 or H, 1 or B, N, P]
        cos = cos[:, None] if cos.ndim == 3 else cos.transpose(0, 1)
        sin = sin[:, None] if sin.ndim == 3 else sin.transpose(0, 1)
    masked = None if key_mask is None else ~key_mask[None, :, :, None]
    inputs = ChunkInputs(q, k, v, key_bias, form.weight, cos, sin, masked)
    if torch.compiler.is_compiling():
        compiled: Tensor = _attention(*inputs, form.kind, float(form.square), form.order)[0]
        return compiled
    out: Tensor = _ChunkedAttention.apply(form, *inputs)
    return out


class _ChunkedAttention(torch.autograd.Function):
    """Loop over the chunks with its gradients, for eager mode."""

    @staticmethod
    def forward(ctx: Any, form: FeatureForm, *tensors: Any) -> Tensor:
        inputs = ChunkInputs(*tensors)
        out, state = ChunkLoop(inputs, form).forward()
        ctx.form = form
        ctx.save_for_backward(*inputs, out, *state)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ChunkInputs._fields)
        inputs, out, state = ChunkInputs(*saved[:count]), saved[count], saved[count + 1 :]
        _, _, _, _, _, for_weight, for_cos, for_sin, _ = ctx.needs_input_grad
        gradients = ChunkLoop(inputs, ctx.form).backward(out, gradient, state, for_weight, for_cos or for_sin)
        return None, *gradients, None  # the form and the mask have none


# The same as operations of a compiled graph. Schemas take plain types, so that FeatureForm becomes three arguments.
_FORM = "str kind, float square, int order"
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor weight, Tensor? cos, Tensor? sin, Tensor? masked"
# The outputs and the sums over the keys. Exponential features have two sums; the third is then empty.
_STATE = "Tensor out, Tensor sums_a, Tensor sums_b, Tensor sums_c"
# Gradients of the inputs up to sin. One that is not wanted is empty.
_GRADIENTS = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"


def _loop(inputs: ChunkInputs, kind: Any, square: float, order: int) -> ChunkLoop:
    """Return the loop for the arguments of an operation."""
    return ChunkLoop(inputs, FeatureForm(kind, inputs.weight, square=square, order=order))


@custom_op(
    "performer_string::chunked_attention",
    mutates_args=(),
    schema=f"({_INPUTS}, {_FORM}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _attention(*arguments: Any) -> tuple[Tensor, ...]:
    """Return the outputs and the sums over the keys, without autocast, from the inputs and the parts of the form."""
    inputs, form = ChunkInputs(*arguments[:8]), arguments[8:]
    with without_autocast(inputs.q):
        out, state = _loop(inputs, *form).forward()
    return (out, *(x.contiguous() for x in state), *(inputs.q.new_empty(0) for _ in range(3 - len(state))))


@_attention.register_fake
def _fake_attention(*arguments: Any) -> tuple[Tensor, ...]:
    """Return empty tensors of the shapes and types of `_attention`, for the compiler."""
    inputs, kind = ChunkInputs(*arguments[:8]), arguments[8]
    q, v, dtype = inputs.q, inputs.v, _loop(inputs, *arguments[8:]).dtype
    (batch, heads, tokens, _), rows, width = q.shape, inputs.weight.shape[1], v.shape[-1]
    sums = q.new_empty(heads, batch, rows, width, dtype=dtype)
    total = q.new_empty(heads, batch, rows, dtype=dtype)
    scale = q.new_empty(0) if kind == "exponential" else q.new_empty(heads, batch, 1, 1, dtype=dtype)
    return v.new_empty(batch, heads, tokens, width), sums, total, scale


@custom_op(
    "performer_string::chunked_attention_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, {_INPUTS}, {_STATE}, {_FORM}, bool learned, bool learned_angles) -> {_GRADIENTS}",
)
def _gradients(gradient: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the inputs up to sin, in the types of these, from that of the outputs."""
    inputs, out, state = ChunkInputs(*arguments[:8]), arguments[8], arguments[9:12]
    form, wanted = arguments[12:15], arguments[15:]
    with without_autocast(inputs.q):
        sums = state[:2] if form[0] == "exponential" else state
        gradients = _loop(inputs, *form).backward(out, gradient, sums, *wanted)
    pairs = zip(gradients, arguments[:7], strict=True)
    return tuple(gradient.new_empty(0) if x is None else x.to(source.dtype).contiguous() for x, source in pairs)


@_gradients.register_fake
def _fake_gradients(gradient: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Return empty tensors of the shapes and types of `_gradients`, for the compiler."""
    learned, learned_angles = arguments[15:]
    wanted = (True, True, True, True, learned, learned_angles, learned_angles)
    pairs = zip(arguments[:7], wanted, strict=True)
    return tuple(x.new_empty(x.shape) if x is not None and want else gradient.new_empty(0) for x, want in pairs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the arguments and results of `_attention` for its backward pass."""
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.form = inputs[8:]


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `_attention`, None for arguments that need no gradient."""
    needed = ctx.needs_input_grad[:7]
    gradients = _gradients(gradient, *ctx.saved_tensors, *ctx.form, needed[4], needed[5] or needed[6])
    return *(x if need else None for x, need in zip(gradients, needed, strict=True)), None, None, None, None


_attention.register_autograd(_backward, setup_context=_save)
