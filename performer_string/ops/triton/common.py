"""Functions inside the Triton kernels: loading and rotating tokens, and the two kinds of features.

Shapes: a block of tokens or features is called rows; HALF is the padded half of a head's width, WIDE the padded width
of the values. Features of ORDER 0 are exponentials in base 2 and stand as logarithms, others as bases of a power.
"""

# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from performer_string.ops.triton.launch import INTERPRETED

LN2 = tl.constexpr(0.6931471805599453)
FLOOR = tl.constexpr(-1e38)  # below every log-feature, finite so that FLOOR - FLOOR is a number
TINY = tl.constexpr(1.1754943508222875e-38)  # the same for powers, which are divided by their maximum


@triton.jit
def columns(D: tl.constexpr, HALF: tl.constexpr, P: tl.constexpr):
    """Return the dimensions in the two halves of a head: [HALF] three times.

    Plane p lies in column p of both halves. The remaining columns pair dimensions that are not rotated.
    """
    p = tl.arange(0, HALF)
    if P == 0 or 2 * P == D:
        first, second = p, p + D // 2
    else:
        first, second = tl.where(p < P, p, p + P), tl.where(p < P, p + P, p + D // 2)
    return p, first, second


@triton.jit
def load_half(x, rows, stride, keep, p, column, D: tl.constexpr, HALF: tl.constexpr):
    """Return x[rows, column], zero where not `keep`: [rows, HALF]."""
    at = x + rows[:, None] * stride + column[None, :]
    ok = keep[:, None] if 2 * HALF == D else keep[:, None] & (p < D // 2)[None, :]
    return tl.load(at, mask=ok, other=0.0)


@triton.jit
def store_half(x, rows, stride, keep, p, column, value, D: tl.constexpr):
    """Write `value` [rows, HALF] to x[rows, column] where `keep`."""
    at = x + rows[:, None] * stride + column[None, :]
    tl.store(at, value.to(x.dtype.element_ty), mask=keep[:, None] & (p < D // 2)[None, :])


@triton.jit
def load_angles(c, s, rows, stride, keep, p, P: tl.constexpr, HALF: tl.constexpr):
    """Return cosines and sines of the planes in float32, 1 and 0 for columns that are not rotated: [rows, HALF]."""
    at = rows[:, None] * stride + p[None, :]
    ok = keep[:, None] if P == HALF else keep[:, None] & (p < P)[None, :]
    return tl.load(c + at, mask=ok, other=1.0).to(tl.float32), tl.load(s + at, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def load_rotated(
    x, c, s, rows, stride, stride_c, keep, p, first, second, D: tl.constexpr, HALF: tl.constexpr, P: tl.constexpr
):
    """Return R x in its two halves, (c x1 - s x2, s x1 + c x2), in the type of x: [rows, HALF] twice."""
    x1 = load_half(x, rows, stride, keep, p, first, D, HALF)
    x2 = load_half(x, rows, stride, keep, p, second, D, HALF)
    if P > 0:
        cos, sin = load_angles(c, s, rows, stride_c, keep, p, P, HALF)
        y1 = x1.to(tl.float32) * cos - x2.to(tl.float32) * sin
        y2 = x1.to(tl.float32) * sin + x2.to(tl.float32) * cos
        y1, y2 = y1.to(x1.dtype), y2.to(x1.dtype)
    else:
        y1, y2 = x1, x2
    return y1, y2


@triton.jit
def store_rotated_back(
    grad, x, c, s, dcos, dsin, rows, stride, stride_x, stride_c, exists, keep, p, first, second, g1, g2,
    D: tl.constexpr, HALF: tl.constexpr, P: tl.constexpr, GRAD_PLANES: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Write dx = R^T dy, dc = dy1 x1 + dy2 x2 and ds = dy2 x1 - dy1 x2 from dy = (g1, g2).

    With ADD, dc and ds are added to. Masked tokens, which exist and are not kept, have dy = 0. They are not read, so
    that NaN in them has no effect.
    """
    if P > 0:
        cos, sin = load_angles(c, s, rows, stride_c, exists, p, P, HALF)
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
    """Return x[rows, :WIDTH], padded with zeros: [rows, WIDE]."""
    column = tl.arange(0, WIDE)
    ok = keep[:, None] if WIDE == WIDTH else keep[:, None] & (column < WIDTH)[None, :]
    return tl.load(x + rows[:, None] * stride + column[None, :], mask=ok, other=0.0)


@triton.jit
def store_rows(x, rows, stride, keep, value, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Write the first WIDTH columns of `value` [rows, WIDE] to x[rows] where `keep`."""
    column = tl.arange(0, WIDE)
    at = x + rows[:, None] * stride + column[None, :]
    tl.store(at, value.to(x.dtype.element_ty), mask=keep[:, None] & (column < WIDTH)[None, :])


@triton.jit
def load_mask(mask, rows, tokens, HAS_MASK: tl.constexpr):
    """Return a mask of the tokens that exist and take part: [rows]."""
    keep = rows < tokens
    if HAS_MASK:
        keep = keep & (tl.load(mask + rows, mask=keep, other=0) != 0)
    return keep


@triton.jit
def dot(a, b, total, PRECISION: tl.constexpr):
    """Return total + a b, summed in float32; `total` may be None."""
    if INTERPRETED:  # the interpreter multiplies bfloat16 as if it were integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def power(x, ORDER: tl.constexpr):
    """Return x^ORDER by repeated squaring, ORDER below 32."""
    result = tl.full(x.shape, 1.0, tl.float32)
    for i in tl.static_range(5):
        result = result * result
        if (ORDER >> (4 - i)) & 1:
            result = result * x
    return result


@triton.jit
def relative_feature(x, top, ORDER: tl.constexpr):
    """Return the feature of x over that of `top`: 2^(x - top) for ORDER 0, else (x / top)^ORDER with x >= 0."""
    ratio = tl.exp2(x - top) if ORDER == 0 else power(x * (1.0 / top), ORDER)
    return ratio


@triton.jit
def relative_slope(x, top, scale, ORDER: tl.constexpr):
    """Return `relative_feature` and its derivative by u.

    For exponentials u is in natural logarithms; for powers dx = scale du.
    """
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
def initial_maximum(ORDER: tl.constexpr):
    """Return the first value of a running maximum."""
    floor = FLOOR if ORDER == 0 else TINY
    return floor


@triton.jit
def total_level(top, mass, ORDER: tl.constexpr):
    """Return the x whose feature is `mass` times that of `top`: the log-sum-exp, or the ORDER-norm, of a sum."""
    level = top + tl.log2(mass) if ORDER == 0 else top * tl.exp2(tl.log2(mass) / ORDER)
    return level


@triton.jit
def query_response(u, level, ORDER: tl.constexpr):
    """Return the feature of a query times the level of the keys: u + level in logarithms, or relu(u) level."""
    x = u + level if ORDER == 0 else tl.maximum(u, 0.0) * level
    return x


@triton.jit
def key_penalty(y1, y2, bias, rows, keep, square, HAS_BIAS: tl.constexpr):
    """Return square |k|^2 - b, which is subtracted from a key's log-features: [rows]."""
    penalty = square * tl.sum(y1.to(tl.float32) * y1.to(tl.float32) + y2.to(tl.float32) * y2.to(tl.float32), 1)
    if HAS_BIAS:
        penalty -= tl.load(bias + rows, mask=keep, other=0.0)
    return penalty


@triton.jit
def key_response(u, penalty, keep, ORDER: tl.constexpr):
    """Return the feature of a key: u - penalty in logarithms, or relu(u). Masked keys were loaded as 0."""
    return tl.where(keep, u - penalty, float("-inf")) if ORDER == 0 else tl.maximum(u, 0.0)
