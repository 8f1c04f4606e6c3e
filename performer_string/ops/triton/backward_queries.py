"""Backward pass of the queries: dq, and for each feature the sums over the queries that `key_gradients` needs.

The equations are in `backward`.
"""

# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from performer_string.ops.triton.common import (
    LN2,
    columns,
    dot,
    load_half,
    load_rotated,
    load_rows,
    query_response,
    relative_feature,
    relative_slope,
    store_rotated_back,
    store_rows,
)
from performer_string.ops.triton.launch import QuickLaunch, autotuned


@autotuned((64, 64, 4, 2), (64, 64, 8, 2), (32, 128, 8, 2), (64, 128, 8, 2), (128, 64, 8, 2), (64, 128, 8, 1))
def query_gradients(
    q, w, c, s, levels, values, norms, out, dout, dq, out_dots, dcos, dsin,
    H, N,
    stride_qb, stride_qh, stride_qn, stride_cb, stride_ch, stride_cn, stride_outb, stride_outh, stride_outn,
    stride_doutb, stride_douth, stride_doutn, stride_dqb, stride_dqh, stride_dqn,
    D: tl.constexpr, HALF: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    ORDER: tl.constexpr, GRAD_PLANES: tl.constexpr, PRECISION: tl.constexpr, BUCKET,
    BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write dq, the queries' part of dc and ds, and D [B H, N] in float32 for `feature_sums`."""
    pid = tl.program_id(0)
    blocks_n = tl.cdiv(N, BLOCK_N)
    rows, head = ((pid % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64), (pid // blocks_n).to(tl.int64)
    b, h = head // H, head % H
    q, dq = q + b * stride_qb + h * stride_qh, dq + b * stride_dqb + h * stride_dqh
    c, s = c + b * stride_cb + h * stride_ch, s + b * stride_cb + h * stride_ch
    out, dout = out + b * stride_outb + h * stride_outh, dout + b * stride_doutb + h * stride_douth
    w, levels, values = w + h * M * D, levels + head * M, values + head * M * DV
    p, first, second = columns(D, HALF, P)
    keep = rows < N
    y1, y2 = load_rotated(q, c, s, rows, stride_qn, stride_cn, keep, p, first, second, D, HALF, P)
    g = load_rows(dout, rows, stride_doutn, keep, DV, WIDE)
    out_dot = tl.sum(g.to(tl.float32) * load_rows(out, rows, stride_outn, keep, DV, WIDE).to(tl.float32), 1)
    tl.store(out_dots + head * N + rows, out_dot, mask=keep)
    norm = tl.load(norms + head * N + rows, mask=keep, other=float("inf"))
    g1 = tl.zeros([BLOCK_N, HALF], tl.float32)
    g2 = tl.zeros([BLOCK_N, HALF], tl.float32)
    for start in range(0, M, BLOCK_F):
        f = start + tl.arange(0, BLOCK_F)
        real = f < M
        w1 = load_half(w, f, D, real, p, first, D, HALF)
        w2 = load_half(w, f, D, real, p, second, D, HALF)
        means = load_rows(values, f, DV, real, DV, WIDE)
        level = tl.load(levels + f, mask=real, other=float("-inf") if ORDER == 0 else 0.0)
        u = dot(y1, tl.trans(w1), None, PRECISION)
        u = dot(y2, tl.trans(w2), u, PRECISION)  # [BLOCK_N, BLOCK_F]
        by_weight = dot(g, tl.trans(means), None, PRECISION)
        _, slope = relative_slope(query_response(u, level[None, :], ORDER), norm[:, None], level[None, :], ORDER)
        du = (slope * (by_weight - out_dot[:, None])).to(w1.dtype)
        g1 = dot(du, w1, g1, PRECISION)
        g2 = dot(du, w2, g2, PRECISION)
    if ORDER == 0:
        g1, g2 = g1 * LN2, g2 * LN2
    at = head * N * P
    store_rotated_back(
        dq, q, c, s, dcos + at, dsin + at, rows, stride_dqn, stride_qn, stride_cn, keep, keep, p, first, second, g1, g2,
        D, HALF, P, GRAD_PLANES, False,
    )  # fmt: skip


@autotuned(
    (64, 64, 4, 2), (64, 128, 4, 2), (128, 64, 4, 2), (128, 64, 8, 2), (128, 64, 8, 1), (128, 128, 8, 2),
    (256, 64, 8, 2),
)  # fmt: skip
def feature_sums(
    q, w, c, s, levels, norms, out_dots, dout, sums, masses,
    H, N, SPLITS,
    stride_qb, stride_qh, stride_qn, stride_cb, stride_ch, stride_cn, stride_doutb, stride_douth, stride_doutn,
    D: tl.constexpr, HALF: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    ORDER: tl.constexpr, PRECISION: tl.constexpr, BUCKET,
    BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write dU and e over each part of the queries, in float32: [B H, SPLITS, m, dv] and [B H, SPLITS, m]."""
    pid = tl.program_id(0)
    blocks_f, blocks_n = tl.cdiv(M, BLOCK_F), tl.cdiv(N, BLOCK_N)
    f = (pid % blocks_f) * BLOCK_F + tl.arange(0, BLOCK_F)
    part = pid // blocks_f
    split, head = part % SPLITS, (part // SPLITS).to(tl.int64)
    b, h = head // H, head % H
    q, dout = q + b * stride_qb + h * stride_qh, dout + b * stride_doutb + h * stride_douth
    c, s = c + b * stride_cb + h * stride_ch, s + b * stride_cb + h * stride_ch
    norms, out_dots = norms + head * N, out_dots + head * N
    p, first, second = columns(D, HALF, P)
    real = f < M
    w += h * M * D
    w1 = load_half(w, f, D, real, p, first, D, HALF)
    w2 = load_half(w, f, D, real, p, second, D, HALF)
    level = tl.load(levels + head * M + f, mask=real, other=float("-inf") if ORDER == 0 else 0.0)
    mass = tl.zeros([BLOCK_F], tl.float32)
    total = tl.zeros([BLOCK_F, WIDE], tl.float32)
    each = tl.cdiv(blocks_n, SPLITS)
    for block in range(split * each, tl.minimum(split * each + each, blocks_n)):
        rows = (block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        keep = rows < N
        y1, y2 = load_rotated(q, c, s, rows, stride_qn, stride_cn, keep, p, first, second, D, HALF, P)
        g = load_rows(dout, rows, stride_doutn, keep, DV, WIDE)
        norm = tl.load(norms + rows, mask=keep, other=float("inf"))
        out_dot = tl.load(out_dots + rows, mask=keep, other=0.0)
        u = dot(w1, tl.trans(y1), None, PRECISION)
        u = dot(w2, tl.trans(y2), u, PRECISION)  # [BLOCK_F, BLOCK_N]
        weights = relative_feature(query_response(u, level[:, None], ORDER), norm[None, :], ORDER).to(g.dtype)
        mass += tl.sum(weights.to(tl.float32) * out_dot[None, :], 1)
        total = dot(weights, g, total, PRECISION)
    at = (head * SPLITS + split) * M + f
    tl.store(masses + at, mass, mask=real)
    store_rows(sums, at, DV, real, total, DV, WIDE)


@QuickLaunch
@triton.jit
def merge_features(
    sums, masses, levels, peaks, dvalues, dot_sums, SPLITS,
    DV: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, ORDER: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Write dU and e over all queries, divided by the keys' sum of exp(l - max).

    dU is [B H, m, dv] in the inputs' type, e is [B H, m] in float32.
    """
    pid = tl.program_id(0)
    blocks_f = tl.cdiv(M, BLOCK_F)
    f, head = (pid % blocks_f) * BLOCK_F + tl.arange(0, BLOCK_F), (pid // blocks_f).to(tl.int64)
    real = f < M
    mass = tl.zeros([BLOCK_F], tl.float32)
    total = tl.zeros([BLOCK_F, WIDE], tl.float32)
    for split in range(0, SPLITS):
        at = (head * SPLITS + split) * M + f
        mass += tl.load(masses + at, mask=real, other=0.0)
        total += load_rows(sums, at, DV, real, DV, WIDE)
    at = head * M + f
    level, peak = tl.load(levels + at, mask=real, other=1.0), tl.load(peaks + at, mask=real, other=1.0)
    keys = relative_feature(level, peak, ORDER)
    keys = tl.where(keys > 0, keys, 1.0)
    tl.store(dot_sums + at, mass / keys, mask=real)
    store_rows(dvalues, at, DV, real, total / keys[:, None], DV, WIDE)
