"""What the Triton kernels share: loading and turning tokens, the two kinds of features, autotuning.

Importing this module imports Triton; `triton_linear` does so when it is first called.
"""

# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # as triton.jit sees it when kernels are made
LN2 = tl.constexpr(0.6931471805599453)
FLOOR = tl.constexpr(-1e38)  # below every log-feature, finite so that FLOOR - FLOOR is a number
TINY = tl.constexpr(1.1754943508222875e-38)  # the same for powers, which are divided by their maximum


def tuned(*blocks: tuple[int, int, int, int], restore: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """`triton.jit` with autotuning over (BLOCK_F features, BLOCK_N tokens, warps, stages) for each head width, number
    of features and power of two of tokens; one small configuration in the interpreter, so that tests see many blocks.

    Exact float32 products run without the matrix units, and large blocks of them outside the registers: they have
    blocks of their own.
    """
    exact = [(32, 32, 4, 1), (32, 32, 8, 1), (32, 64, 8, 1), (64, 32, 8, 1)]
    if INTERPRETED.value:
        blocks, exact = ((16, 64, 1, 1),), []
    configs = [
        triton.Config({"BLOCK_F": f, "BLOCK_N": n}, num_warps=w, num_stages=s) for f, n, w, s in [*blocks, *exact]
    ]
    key = ["D", "DV", "M", "P", "ORDER", "PRECISION", "BUCKET"]

    def prune(configs: list[Any], arguments: dict[str, Any], **chosen: Any) -> list[Any]:
        return configs[len(blocks) :] if chosen["PRECISION"] == "ieee" else configs[: len(blocks)]

    def wrap(kernel: Any) -> Any:
        options = {"restore_value": list(restore) or None, "prune_configs_by": {"early_config_prune": prune}}
        return triton.autotune(configs, key, **options)(triton.jit(kernel))

    return wrap


def constants(q: Tensor, v: Tensor, weight: Tensor, c: Tensor | None, order: int, precision: str) -> dict[str, Any]:
    """What every kernel is compiled for, from the arguments of `forward`.

    Matrix units take no side below 16, so that halves of a head and values are padded to it.
    """
    (tokens, d), dv = q.shape[2:], v.shape[-1]
    half, value = max(16, triton.next_power_of_2(d // 2)), max(16, triton.next_power_of_2(dv))
    shape = {"D": d, "HALF": half, "DV": dv, "WIDE": value, "BUCKET": max(10, tokens.bit_length())}
    return {**shape, "M": weight.shape[1], "P": 0 if c is None else c.shape[-1], "ORDER": order, "PRECISION": precision}


def splits(heads: int, features: int, tokens: int, x: Tensor) -> int:
    """Into how many parts a sum over the tokens is split: about four programs for each multiprocessor in all."""
    if x.device.type != "cuda":
        return min(2, triton.cdiv(tokens, 32))
    wanted = 4 * torch.cuda.get_device_properties(x.device).multi_processor_count
    return max(1, min(triton.cdiv(wanted, heads * triton.cdiv(features, 128)), triton.cdiv(tokens, 256)))


@triton.jit
def columns(D: tl.constexpr, HALF: tl.constexpr, P: tl.constexpr):
    """The two halves of a head: plane p lies in column p of both, and so do two dimensions that never turn."""
    p = tl.arange(0, HALF)
    if P == 0 or 2 * P == D:
        first, second = p, p + D // 2
    else:
        first, second = tl.where(p < P, p, p + P), tl.where(p < P, p + P, p + D // 2)
    return p, first, second


@triton.jit
def load_half(x, rows, stride, keep, p, column, D: tl.constexpr, HALF: tl.constexpr):
    """x[rows, column], 0 where not `keep`: [rows, HALF]."""
    at = x + rows[:, None] * stride + column[None, :]
    ok = keep[:, None] if 2 * HALF == D else keep[:, None] & (p < D // 2)[None, :]
    return tl.load(at, mask=ok, other=0.0)


@triton.jit
def store_half(x, rows, stride, keep, p, column, value, D: tl.constexpr):
    at = x + rows[:, None] * stride + column[None, :]
    tl.store(at, value.to(x.dtype.element_ty), mask=keep[:, None] & (p < D // 2)[None, :])


@triton.jit
def load_turn(c, s, rows, stride, keep, p, P: tl.constexpr, HALF: tl.constexpr):
    """(cos, sin) of the planes, 1 and 0 for columns that never turn: float32, [rows, HALF]."""
    at = rows[:, None] * stride + p[None, :]
    ok = keep[:, None] if P == HALF else keep[:, None] & (p < P)[None, :]
    return tl.load(c + at, mask=ok, other=1.0).to(tl.float32), tl.load(s + at, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def load_turned(
    x, c, s, rows, stride, stride_c, keep, p, first, second, D: tl.constexpr, HALF: tl.constexpr, P: tl.constexpr
):
    """R x in its two halves, in the type of x: (c x1 - s x2, s x1 + c x2)."""
    x1 = load_half(x, rows, stride, keep, p, first, D, HALF)
    x2 = load_half(x, rows, stride, keep, p, second, D, HALF)
    if P > 0:
        cos, sin = load_turn(c, s, rows, stride_c, keep, p, P, HALF)
        y1 = x1.to(tl.float32) * cos - x2.to(tl.float32) * sin
        y2 = x1.to(tl.float32) * sin + x2.to(tl.float32) * cos
        y1, y2 = y1.to(x1.dtype), y2.to(x1.dtype)
    else:
        y1, y2 = x1, x2
    return y1, y2


@triton.jit
def store_turned_back(
    grad, x, c, s, dcos, dsin, rows, stride, stride_x, stride_c, exists, keep, p, first, second, g1, g2,
    D: tl.constexpr, HALF: tl.constexpr, P: tl.constexpr, GRAD_PLANES: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """From dy to dx = R^T dy, dc = dy1 x1 + dy2 x2 and ds = dy2 x1 - dy1 x2; ADD to what dc and ds hold.

    Tokens that exist and are not kept (dy = 0) are not read, so that whatever they hold stays there.
    """
    if P > 0:
        cos, sin = load_turn(c, s, rows, stride_c, exists, p, P, HALF)
        if GRAD_PLANES:
            x1 = load_half(x, rows, stride_x, keep, p, first, D, HALF).to(tl.float32)
            x2 = load_half(x, rows, stride_x, keep, p, second, D, HALF).to(tl.float32)
            by_cos, by_sin = g1 * x1 + g2 * x2, g2 * x1 - g1 * x2
            at, ok = rows[:, None] * P + p[None, :], exists[:, None] & (p < P)[None, :]
            if ADD:
                by_cos += tl.load(dcos + at, mask=ok, other=0.0)
                by_sin += tl.load(dsin + at, mask=ok, other=0.0)
            tl.store(dcos + at, by_cos, mask=ok)
            tl.store(dsin + at, by_sin, mask=ok)
        h1, h2 = g1 * cos + g2 * sin, g2 * cos - g1 * sin
    else:
        h1, h2 = g1, g2
    store_half(grad, rows, stride, exists, p, first, h1, D)
    store_half(grad, rows, stride, exists, p, second, h2, D)


@triton.jit
def load_rows(x, rows, stride, keep, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """x[rows, :WIDTH], padded with zeros: [rows, WIDE]."""
    column = tl.arange(0, WIDE)
    ok = keep[:, None] if WIDE == WIDTH else keep[:, None] & (column < WIDTH)[None, :]
    return tl.load(x + rows[:, None] * stride + column[None, :], mask=ok, other=0.0)


@triton.jit
def store_rows(x, rows, stride, keep, value, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    column = tl.arange(0, WIDE)
    at = x + rows[:, None] * stride + column[None, :]
    tl.store(at, value.to(x.dtype.element_ty), mask=keep[:, None] & (column < WIDTH)[None, :])


@triton.jit
def load_kept(mask, rows, tokens, HAS_MASK: tl.constexpr):
    """Which of these tokens exist and take part."""
    keep = rows < tokens
    if HAS_MASK:
        keep = keep & (tl.load(mask + rows, mask=keep, other=0) != 0)
    return keep


@triton.jit
def dot(a, b, total, PRECISION: tl.constexpr):
    """total + a b, summed in float32; `total` may be None."""
    if INTERPRETED:  # which multiplies bfloat16 as if it were integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def power(x, ORDER: tl.constexpr):
    """x^ORDER by repeated squaring, ORDER below 32."""
    result = tl.full(x.shape, 1.0, tl.float32)
    for i in tl.static_range(5):
        result = result * result
        if (ORDER >> (4 - i)) & 1:
            result = result * x
    return result


@triton.jit
def relative(x, top, ORDER: tl.constexpr):
    """A feature over that of `top`: 2^(x - top) for ORDER 0, else (x / top)^ORDER with x >= 0."""
    ratio = tl.exp2(x - top) if ORDER == 0 else power(x * (1.0 / top), ORDER)
    return ratio


@triton.jit
def relative_slope(x, top, scale, ORDER: tl.constexpr):
    """(`relative`, its derivative by u), for exponentials in natural logarithms and for powers with dx = scale du."""
    if ORDER == 0:
        ratio = tl.exp2(x - top)
        slope = ratio
    else:
        fraction = x * (1.0 / top)
        lower = power(fraction, ORDER - 1)
        ratio = lower * fraction
        slope = tl.where(x > 0, ORDER * lower * (scale * (1.0 / top)), 0.0)
    return ratio, slope


@triton.jit
def lowest(ORDER: tl.constexpr):
    """Where a running maximum starts."""
    floor = FLOOR if ORDER == 0 else TINY
    return floor


@triton.jit
def leveled(top, mass, ORDER: tl.constexpr):
    """The x whose feature is `mass` times that of `top`: log-sum-exp, or the ORDER-norm, of what was summed."""
    level = top + tl.log2(mass) if ORDER == 0 else top * tl.exp2(tl.log2(mass) / ORDER)
    return level


@triton.jit
def answer(u, level, ORDER: tl.constexpr):
    """A query's response to a feature times the keys' level of it: u + level in logarithms, or relu(u) level."""
    x = u + level if ORDER == 0 else tl.maximum(u, 0.0) * level
    return x


@triton.jit
def dropped(y1, y2, bias, rows, keep, square, HAS_BIAS: tl.constexpr):
    """What a key's log-features lose: square |k|^2, less its bias."""
    drop = square * tl.sum(y1.to(tl.float32) * y1.to(tl.float32) + y2.to(tl.float32) * y2.to(tl.float32), 1)
    if HAS_BIAS:
        drop -= tl.load(bias + rows, mask=keep, other=0.0)
    return drop


@triton.jit
def response(u, drop, keep, ORDER: tl.constexpr):
    """A key's: u - drop in logarithms, or relu(u). A key that does not take part was loaded as 0."""
    return tl.where(keep, u - drop, float("-inf")) if ORDER == 0 else tl.maximum(u, 0.0)
