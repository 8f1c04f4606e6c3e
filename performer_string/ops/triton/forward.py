"""Forward pass of fused linear attention: sums over the keys, their merger, and the outputs of the queries.

With l_jf the log-feature of key j, and u_if the projection of query i,

    L_f = log sum_j exp(l_jf),   U_f = sum_j exp(l_jf - L_f) v_j                                   (pass over the keys)
    out_i = sum_f exp(u_if + L_f - n_i) U_f,   n_i = log sum_f exp(u_if + L_f)                  (pass over the queries)

is linear attention with exponential features. It consists of two softmax attentions in a row: m features attend to
the keys, and the queries attend to the m features. Both run as flash attention does, with an online maximum. Nothing
overflows or needs an epsilon, because every weight is at most 1 and U_f is a mean of the values.

Powers are the same with l = order log relu(u), written without logarithms. Maxima divide instead of being subtracted,
and L_f and n_i are `order`-norms. Exponentials are in base 2: the weight comes multiplied by log2 e.

Matrix products take operands of the inputs' type and sum in float32. Every tl.dot has sides of at least 16. Where
features meet tokens they are 64 or more, as Hopper's wgmma needs 64 rows for each group of four warps.

A multiprocessor has 64 K registers and 227 KiB of shared memory. Compiled for bf16 on sm_90, where all products are
wgmma, a program of 64 x 64 takes 130 registers a thread at d = 64. Three such programs fit side by side in either
pass. At d = 128 two fit, without a spill. This hardly depends on m.

In key_pass the sums and the scores are float32 in registers: 64 and 32 a thread at d = 128 with 128 features and eight
warps. W stays in shared memory, and a stage holds k, v, c and s. Each block of features reads its tokens again, with
4 BLOCK_F d operations for 8 d bytes (half of them c and s, in float32). That is 64 operations a byte with 128 features,
and 128 with 256. At d = 64 the latter are all of m = 256. query_pass reads W and U from L2 for each block of tokens,
with BLOCK_N operations a byte.

At d = 64 the exponentials (16 a cycle and multiprocessor, one for each 4 d operations) take as long as the products.
Only programs side by side hide one behind the other. Powers cost a few multiplications instead.
"""

# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from performer_string.ops.triton.common import (
    columns,
    dot,
    initial_maximum,
    key_penalty,
    key_response,
    load_half,
    load_mask,
    load_rotated,
    load_rows,
    query_response,
    relative_feature,
    store_rows,
    total_level,
)
from performer_string.ops.triton.launch import QuickLaunch, autotuned, compile_constants, count_splits


# BLOCK_F, BLOCK_N, warps, stages
@autotuned(
    (64, 64, 4, 2), (64, 128, 4, 2), (128, 64, 4, 2), (128, 64, 8, 2), (128, 64, 8, 1), (128, 128, 8, 2),
    (256, 64, 8, 2),
)  # fmt: skip
def key_pass(
    k, v, w, c, s, bias, mask, sums, masses, tops,
    H, N, SPLITS, square,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_cb, stride_ch, stride_cn, stride_maskb,
    D: tl.constexpr, HALF: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    ORDER: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, BUCKET,
    BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the sums over each part of the tokens, relative to the maximum of that part.

    They are sums [B H, SPLITS, m, dv], masses and tops [B H, SPLITS, m]. Feature blocks of the same tokens are
    neighbours, so that they share tokens in L2.
    """
    pid = tl.program_id(0)
    blocks_f, blocks_n = tl.cdiv(M, BLOCK_F), tl.cdiv(N, BLOCK_N)
    f = (pid % blocks_f) * BLOCK_F + tl.arange(0, BLOCK_F)
    part = pid // blocks_f
    split, head = part % SPLITS, (part // SPLITS).to(tl.int64)
    b, h = head // H, head % H
    k, v, mask = k + b * stride_kb + h * stride_kh, v + b * stride_vb + h * stride_vh, mask + b * stride_maskb
    c, s = c + b * stride_cb + h * stride_ch, s + b * stride_cb + h * stride_ch
    p, first, second = columns(D, HALF, P)
    real = f < M
    w += h * M * D
    w1 = load_half(w, f, D, real, p, first, D, HALF)
    w2 = load_half(w, f, D, real, p, second, D, HALF)
    top = tl.full([BLOCK_F], initial_maximum(ORDER), tl.float32)
    mass = tl.zeros([BLOCK_F], tl.float32)
    total = tl.zeros([BLOCK_F, WIDE], tl.float32)
    each = tl.cdiv(blocks_n, SPLITS)
    for block in range(split * each, tl.minimum(split * each + each, blocks_n)):
        rows = (block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        keep = load_mask(mask, rows, N, HAS_MASK)
        y1, y2 = load_rotated(k, c, s, rows, stride_kn, stride_cn, keep, p, first, second, D, HALF, P)
        values = load_rows(v, rows, stride_vn, keep, DV, WIDE)
        x = dot(w1, tl.trans(y1), None, PRECISION)
        x = dot(w2, tl.trans(y2), x, PRECISION)  # [BLOCK_F, BLOCK_N]
        penalty = key_penalty(y1, y2, bias + head * N, rows, keep, square, HAS_BIAS)
        x = key_response(x, penalty[None, :], keep[None, :], ORDER)
        higher = tl.maximum(top, tl.max(x, 1))
        features = relative_feature(x, higher[:, None], ORDER).to(values.dtype)
        shrink = relative_feature(top, higher, ORDER)
        mass = mass * shrink + tl.sum(features.to(tl.float32), 1)
        total = dot(features, values, total * shrink[:, None], PRECISION)
        top = higher
    at = (head * SPLITS + split) * M + f
    tl.store(tops + at, top, mask=real)
    tl.store(masses + at, mass, mask=real)
    store_rows(sums, at, DV, real, total, DV, WIDE)


@QuickLaunch
@triton.jit
def merge_keys(
    sums, masses, tops, values, levels, peaks, SPLITS,
    DV: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, ORDER: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Merge the parts, and write U, L and the maximum over all keys.

    U is [B H, m, dv] in the inputs' type; L and the maximum are [B H, m] in float32.
    """
    pid = tl.program_id(0)
    blocks_f = tl.cdiv(M, BLOCK_F)
    f, head = (pid % blocks_f) * BLOCK_F + tl.arange(0, BLOCK_F), (pid // blocks_f).to(tl.int64)
    real = f < M
    top = tl.full([BLOCK_F], initial_maximum(ORDER), tl.float32)
    for split in range(0, SPLITS):
        top = tl.maximum(top, tl.load(tops + (head * SPLITS + split) * M + f, mask=real, other=initial_maximum(ORDER)))
    mass = tl.zeros([BLOCK_F], tl.float32)
    total = tl.zeros([BLOCK_F, WIDE], tl.float32)
    for split in range(0, SPLITS):
        at = (head * SPLITS + split) * M + f
        shrink = relative_feature(tl.load(tops + at, mask=real, other=initial_maximum(ORDER)), top, ORDER)
        mass += tl.load(masses + at, mask=real, other=0.0) * shrink
        total += load_rows(sums, at, DV, real, DV, WIDE) * shrink[:, None]
    at = head * M + f
    tl.store(peaks + at, top, mask=real)
    tl.store(levels + at, total_level(top, mass, ORDER), mask=real)
    store_rows(values, at, DV, real, total / tl.where(mass > 0, mass, 1.0)[:, None], DV, WIDE)


@autotuned(
    (64, 64, 4, 2), (64, 128, 4, 2), (64, 128, 8, 2), (64, 128, 8, 3), (128, 64, 4, 2), (128, 128, 8, 2),
    (32, 128, 4, 3),
)  # fmt: skip
def query_pass(
    q, w, c, s, levels, values, out, norms,
    H, N,
    stride_qb, stride_qh, stride_qn, stride_cb, stride_ch, stride_cn, stride_outb, stride_outh, stride_outn,
    D: tl.constexpr, HALF: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    ORDER: tl.constexpr, PRECISION: tl.constexpr, BUCKET,
    BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write out [B, H, N, dv], and n [B H, N] in float32 for the backward pass."""
    pid = tl.program_id(0)
    blocks_n = tl.cdiv(N, BLOCK_N)
    rows, head = ((pid % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64), (pid // blocks_n).to(tl.int64)
    b, h = head // H, head % H
    q, out = q + b * stride_qb + h * stride_qh, out + b * stride_outb + h * stride_outh
    c, s = c + b * stride_cb + h * stride_ch, s + b * stride_cb + h * stride_ch
    w, levels, values = w + h * M * D, levels + head * M, values + head * M * DV
    p, first, second = columns(D, HALF, P)
    keep = rows < N
    y1, y2 = load_rotated(q, c, s, rows, stride_qn, stride_cn, keep, p, first, second, D, HALF, P)
    top = tl.full([BLOCK_N], initial_maximum(ORDER), tl.float32)
    mass = tl.zeros([BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_N, WIDE], tl.float32)
    for start in range(0, M, BLOCK_F):
        f = start + tl.arange(0, BLOCK_F)
        real = f < M
        w1 = load_half(w, f, D, real, p, first, D, HALF)
        w2 = load_half(w, f, D, real, p, second, D, HALF)
        means = load_rows(values, f, DV, real, DV, WIDE)
        level = tl.load(levels + f, mask=real, other=float("-inf") if ORDER == 0 else 0.0)
        u = dot(y1, tl.trans(w1), None, PRECISION)
        u = dot(y2, tl.trans(w2), u, PRECISION)  # [BLOCK_N, BLOCK_F]
        x = query_response(u, level[None, :], ORDER)
        higher = tl.maximum(top, tl.max(x, 1))
        weights = relative_feature(x, higher[:, None], ORDER).to(means.dtype)
        shrink = relative_feature(top, higher, ORDER)
        mass = mass * shrink + tl.sum(weights.to(tl.float32), 1)
        total = dot(weights, means, total * shrink[:, None], PRECISION)
        top = higher
    mass = tl.where(mass > 0, mass, 1.0)  # where all products of features are zero, out is 0
    tl.store(norms + head * N + rows, total_level(top, mass, ORDER), mask=keep)
    store_rows(out, rows, stride_outn, keep, total / mass[:, None], DV, WIDE)


def forward(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, c: Tensor | None, s: Tensor | None, bias: Tensor | None,
    mask: Tensor | None, order: int, square: float, precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Run the forward pass.

    Args:
        q, k, v: queries, keys and values, [B, H, N, d], of one type, last dimension dense.
        weight: weight of the map, [H, m, d], in that type, dense, times log2 e for exponentials.
        c, s: cosines and sines, [B, H, N, P], last dimension dense, of the same strides.
        bias: bias of the keys under exponentials, [B, H, N], float32, dense, times log2 e.
        mask: mask of the keys, [B, N], True for keys that take part, last dimension dense.
        order: order of the power; 0 for exponentials.
        square: coefficient of |k|^2, times log2 e.
        precision: precision of float32 products, `ieee` or `tf32`.

    Returns:
        out [B, H, N, dv], n [B, H, N], U [B, H, m, dv], L [B, H, m], the maxima [B, H, m].
    """
    (batch, heads, tokens, _), dv, m = q.shape, v.shape[-1], weight.shape[1]
    parts = count_splits(batch * heads, m, tokens, q)
    single = partial(torch.empty, device=q.device, dtype=torch.float32)
    sums, norms = single(batch, heads, parts, m, dv), single(batch, heads, tokens)
    masses, tops = single(2, batch, heads, parts, m).unbind(0)
    levels, peaks = single(batch, heads, m), single(batch, heads, m)  # an operator's outputs share no memory
    values = torch.empty(batch, heads, m, dv, device=q.device, dtype=q.dtype)
    # Heads side by side in memory, as the output projection takes them.
    out = torch.empty(batch, tokens, heads, dv, device=q.device, dtype=q.dtype).transpose(1, 2)
    shape = compile_constants(q, v, weight, c, order, precision)
    c, s = (q, q) if c is None or s is None else (c, s)  # not read without planes
    key_pass[lambda meta: (triton.cdiv(m, meta["BLOCK_F"]) * parts * batch * heads,)](
        k, v, weight, c, s, q if bias is None else bias, q if mask is None else mask, sums, masses, tops,
        H=heads, N=tokens, SPLITS=parts, square=square, HAS_BIAS=bias is not None, HAS_MASK=mask is not None, **shape,
    )  # fmt: skip
    merge_keys[(triton.cdiv(m, 16) * batch * heads,)](
        sums, masses, tops, values, levels, peaks,
        SPLITS=parts, DV=dv, WIDE=shape["WIDE"], M=m, ORDER=order, BLOCK_F=16,
    )  # fmt: skip
    query_pass[lambda meta: (triton.cdiv(tokens, meta["BLOCK_N"]) * batch * heads,)](
        q, weight, c, s, levels, values, out, norms, H=heads, N=tokens, **shape
    )
    return out, norms, values, levels, peaks
