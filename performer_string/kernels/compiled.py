"""Linear attention in chunks as one operation of a compiled graph.

A compiler would unroll the walk over the chunks into the graph, which then grows with the batch and the tokens, is
compiled again for each size, and asks the processor what it can do in the middle of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from performer_string.features import FeatureForm
from performer_string.kernels.chunked import Walk

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
