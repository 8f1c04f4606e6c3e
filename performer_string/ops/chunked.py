"""Linear attention in chunks: the function that attention calls, as an autograd function and as one compiled operation.

A compiler would unroll the walk over the chunks into its graph, which would grow with the batch and the tokens and be
compiled again for each size. In a compiled graph the walk is therefore one operation, `performer_string::
chunked_attention`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from performer_string.ops.chunk_walk import ChunkWalk
from performer_string.ops.forms import FeatureForm
from performer_string.utils.autograd import first_order


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

    Args:
        q, k, v: [B, H, N, d].
        form: of the feature map.
        planes: cosines and sines, [..., 1 or H, N, P], as `Rotation.planar` gives them; None for no rotation.
        key_mask: [B, N], True where a key takes part.
        key_bias: [B, H, N], finite, added to the logarithms of a key's features; for exponentials.

    Returns:
        [B, H, N, d_v] in the type of v. First derivatives go to q, k, v, the bias, the planes and the map's weight.

    Raises:
        ValueError: a bias with features that are no exponentials.
    """
    if key_bias is not None and form.kind != "exponential":
        raise ValueError("a key's bias is for exponential features; of powers, multiply the key by exp(bias / order).")
    weight = torch.cat([form.weight, -form.weight], dim=1) if form.mirrored else form.weight
    cos = sin = None
    if planes is not None and planes[0].shape[-1]:
        cos, sin = planes
        # [1 or H, N, P] -> [1 or H, 1, N, P]; [1 or B, 1 or H, N, P] -> [1 or H, 1 or B, N, P]
        cos = cos[:, None] if cos.ndim == 3 else cos.transpose(0, 1)
        sin = sin[:, None] if sin.ndim == 3 else sin.transpose(0, 1)
    masked = None if key_mask is None else ~key_mask[None, :, :, None]
    if torch.compiler.is_compiling():
        inputs = (q, k, v, key_bias, weight, cos, sin, masked)
        compiled: Tensor = _attention(*inputs, form.kind, float(form.square), form.order)[0]
        return compiled
    out: Tensor = _ChunkedAttention.apply(q, k, v, key_bias, weight, cos, sin, masked, form)
    return out


class _ChunkedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        weight: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        masked: Tensor | None,
        form: FeatureForm,
    ) -> Tensor:
        out, state = ChunkWalk(q, k, v, weight, cos, sin, masked, bias, form).forward()
        ctx.form = form
        ctx.save_for_backward(q, k, v, bias, weight, cos, sin, masked, out, *state)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, weight, cos, sin, masked, out, *state = ctx.saved_tensors
        _, _, _, _, for_weight, for_cos, for_sin, _, _ = ctx.needs_input_grad
        walk = ChunkWalk(q, k, v, weight, cos, sin, masked, bias, ctx.form)
        return *walk.backward(out, gradient, tuple(state), for_weight, for_cos or for_sin), None, None


# The same as operations of a compiled graph. Their schemas have plain types: FeatureForm is three of them.
_FORM = "str kind, float square, int order"
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor weight, Tensor? cos, Tensor? sin, Tensor? masked"
_STATE = "Tensor out, Tensor a, Tensor b, Tensor c"  # the outputs and the sums over the keys; c may be empty
_SEVEN = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"  # gradients of q to sin; empty if not wanted


def _walk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    masked: Tensor | None,
    kind: Any,
    square: float,
    order: int,
) -> ChunkWalk:
    form = FeatureForm(kind, weight, square=square, order=order)
    return ChunkWalk(q, k, v, weight, cos, sin, masked, bias, form)


@custom_op(
    "performer_string::chunked_attention",
    mutates_args=(),
    schema=f"({_INPUTS}, {_FORM}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _attention(*inputs: Any) -> tuple[Tensor, ...]:
    q = inputs[0]
    with torch.autocast(q.device.type, enabled=False):
        out, state = _walk(*inputs).forward()
    return (out, *(x.contiguous() for x in state), *(q.new_empty(0) for _ in range(3 - len(state))))


@_attention.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    (q, _, v), weight, kind, dtype = inputs[:3], inputs[4], inputs[8], _walk(*inputs).dtype
    (batch, heads, tokens, _), rows, width = q.shape, weight.shape[1], v.shape[-1]
    sums = q.new_empty(heads, batch, rows, width, dtype=dtype)
    total = q.new_empty(heads, batch, rows, dtype=dtype)
    scale = q.new_empty(0) if kind == "exponential" else q.new_empty(heads, batch, 1, 1, dtype=dtype)
    return v.new_empty(batch, heads, tokens, width), sums, total, scale


@custom_op(
    "performer_string::chunked_attention_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, {_INPUTS}, {_STATE}, {_FORM}, bool learned, bool learned_angles) -> {_SEVEN}",
)
def _gradients(gradient: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    inputs, out, state, form, wanted = (
        arguments[:8],
        arguments[8],
        arguments[9:12],
        arguments[12:15],
        arguments[15:],
    )
    q = inputs[0]
    with torch.autocast(q.device.type, enabled=False):
        sums = state[:2] if form[0] == "exponential" else state
        gradients = _walk(*inputs, *form).backward(out, gradient, sums, *wanted)
    pairs = zip(gradients, inputs[:7], strict=True)
    return tuple(q.new_empty(0) if x is None else x.to(of.dtype).contiguous() for x, of in pairs)


@_gradients.register_fake
def _(gradient: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    learned, learned_angles = arguments[15:]
    wanted = (True, True, True, True, learned, learned_angles, learned_angles)
    pairs = zip(arguments[:7], wanted, strict=True)
    return tuple(x.new_empty(x.shape) if x is not None and want else gradient.new_empty(0) for x, want in pairs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.form = inputs[8:]


def _backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[:7]
    gradients = _gradients(gradient, *ctx.saved_tensors, *ctx.form, needed[4], needed[5] or needed[6])
    return *(x if need else None for x, need in zip(gradients, needed, strict=True)), None, None, None, None


_attention.register_autograd(_backward, setup_context=_save)
