"""Linear attention in chunks as one operation of a compiled graph.

A compiler would unroll the walk over the chunks into the graph, which then grows with the batch and the tokens, is
compiled again for each size, and asks the processor what it can do in the middle of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from performer_string.ops.chunk_walk import Walk
from performer_string.ops.forms import FeatureForm
from performer_string.utils.autograd import first_order

FORM = "str kind, float square, int order"
INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor weight, Tensor? cos, Tensor? sin, Tensor? hidden"
STATE = "Tensor out, Tensor a, Tensor b, Tensor c"  # the outputs and the sums over the keys, of which c may be empty
WANTED = "bool learned, bool turned"  # gradients of the weight, and of the cosines and sines
SEVEN = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"  # of q to sin; empty where not wanted


def walk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    hidden: Tensor | None,
    kind: Any,
    square: float,
    order: int,
) -> Walk:
    planes = None if cos is None or sin is None else (cos, sin)
    return Walk(q, k, v, weight, planes, hidden, bias, FeatureForm(kind, weight, square=square, order=order))


@custom_op(
    "performer_string::chunked_attention",
    mutates_args=(),
    schema=f"({INPUTS}, {FORM}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def attention(*inputs: Any) -> tuple[Tensor, ...]:
    q = inputs[0]
    with torch.autocast(q.device.type, enabled=False):
        out, state = walk(*inputs).forward()
    return (out, *(x.contiguous() for x in state), *(q.new_empty(0) for _ in range(3 - len(state))))


@attention.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    (q, _, v), weight, kind, dtype = inputs[:3], inputs[4], inputs[8], walk(*inputs).dtype
    (batch, heads, tokens, _), rows, width = q.shape, weight.shape[1], v.shape[-1]
    sums = q.new_empty(heads, batch, rows, width, dtype=dtype)
    total = q.new_empty(heads, batch, rows, dtype=dtype)
    scale = q.new_empty(0) if kind == "exponential" else q.new_empty(heads, batch, 1, 1, dtype=dtype)
    return v.new_empty(batch, heads, tokens, width), sums, total, scale


@custom_op(
    "performer_string::chunked_attention_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, {INPUTS}, {STATE}, {FORM}, {WANTED}) -> {SEVEN}",
)
def gradients(gradient: Tensor, *given: Any) -> tuple[Tensor, ...]:
    inputs, out, state, form, wanted = given[:8], given[8], given[9:12], given[12:15], given[15:]
    q = inputs[0]
    with torch.autocast(q.device.type, enabled=False):
        sums = state[:2] if form[0] == "exponential" else state
        found = walk(*inputs, *form).backward(out, gradient, sums, wanted)
    pairs = zip(found, inputs[:7], strict=True)
    return tuple(q.new_empty(0) if x is None else x.to(of.dtype).contiguous() for x, of in pairs)


@gradients.register_fake
def _(gradient: Tensor, *given: Any) -> tuple[Tensor, ...]:
    learned, turned = given[15:]
    pairs = zip(given[:7], (True, True, True, True, learned, turned, turned), strict=True)
    return tuple(x.new_empty(x.shape) if x is not None and wanted else gradient.new_empty(0) for x, wanted in pairs)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.form = inputs[8:]


def back(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[:7]
    found = gradients(gradient, *ctx.saved_tensors, *ctx.form, needed[4], needed[5] or needed[6])
    return *(x if there else None for x, there in zip(found, needed, strict=True)), None, None, None, None


attention.register_autograd(back, setup_context=keep)


def compiled_attention(inputs: tuple[Tensor | None, ...], form: FeatureForm) -> Tensor:
    """What `chunked_attention` does with the inputs of `walk`, as an operation that a compiler does not look into."""
    out: Tensor = attention(*inputs, form.kind, float(form.square), form.order)[0]
    return out


class _ChunkedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Any,
        weight: Tensor,
        cos: Any,
        sin: Any,
        hidden: Any,
        form: FeatureForm,
    ) -> Tensor:
        planes = None if cos is None else (cos, sin)
        out, state = Walk(q, k, v, weight, planes, hidden, bias, form).forward()
        ctx.form = form
        ctx.save_for_backward(q, k, v, bias, weight, cos, sin, hidden, out, *state)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, weight, cos, sin, hidden, out, *state = ctx.saved_tensors
        planes = None if cos is None else (cos, sin)
        learned = (ctx.needs_input_grad[4], ctx.needs_input_grad[5] or ctx.needs_input_grad[6])
        found = Walk(q, k, v, weight, planes, hidden, bias, ctx.form).backward(out, gradient, tuple(state), learned)
        return *found, None, None


def chunked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: FeatureForm,
    planes: tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Linear attention of q, k, v [B, H, N, d] under a plane rotation: `linear_attention` without N x m features.

    Args:
        form: of the feature map.
        planes: cosines and sines, [..., 1 or H, N, P], as `Rotation.planar` gives them; None for no rotation.
        key_mask: [B, N], True where a key takes part.
        key_bias: [B, H, N], finite, added to the logarithms of a key's features; for exponentials.

    Returns:
        [B, H, N, d_v] in the type of v. Gradients go to q, k, v, the bias, the planes and the map's weight, once.
    """
    if key_bias is not None and form.kind != "exponential":
        raise ValueError("a key's bias is for exponential features; of powers, multiply the key by exp(bias / order).")
    weight = torch.cat([form.weight, -form.weight], dim=1) if form.mirrored else form.weight
    cos = sin = None
    if planes is not None and planes[0].shape[-1]:
        # [1 or H, N, P] -> [1 or H, 1, N, P]; [1 or B, 1 or H, N, P] -> [1 or H, 1 or B, N, P]
        cos, sin = (x[:, None] if x.ndim == 3 else x.transpose(0, 1) for x in planes)
    hidden = None if key_mask is None else ~key_mask[None, :, :, None]
    inputs = (q, k, v, key_bias, weight, cos, sin, hidden)
    if torch.compiler.is_compiling():
        from performer_string.ops.chunked import compiled_attention

        return compiled_attention(inputs, form)
    out: Tensor = _ChunkedAttention.apply(*inputs, form)
    return out
