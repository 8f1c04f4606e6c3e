"""Backward pass of fused linear attention. Features are computed again; nothing of size N x m is held.

With P_if = exp(u_if + L_f - n_i), D_i = dout_i . out_i, K_jf = exp(l_jf - L_f), in the notation of `forward`:

    dq_i = sum_f P_if (dout_i . U_f - D_i) w_f                                                         (query_gradients)
    dU_f = sum_i P_if dout_i,   e_f = sum_i P_if D_i                                                     (feature_sums)
    dv_j = sum_f K_jf dU_f,   dk_j = sum_f K_jf (dU_f . v_j - e_f) (w_f - 2 square k_j)                  (key_gradients)

where e_f = dU_f . U_f - dL_f takes no further matrix product. For powers the weight in du is order / u times P or K,
written without the division. Gradients of the planes' cosines and sines are per batch and head, and summed outside.

dU and e are sums over the queries, computed in parts and merged afterwards as in the forward pass. There are no atomic
additions, so that the same inputs give the same bits. Both are divided by sum_j exp(l_jf - max). K is then relative to
its maximum, and keeps its precision in sixteen bits for any number of keys.

Products are 5 d + 4 dv for each token and feature, against 2 d + 2 dv forward. Compiled for bf16 on sm_90, no block
size spills registers at d = 64. At d = 128 every kernel has block sizes without a spill. key_gradients takes most
registers, at least 212 a thread under exponentials.
"""

# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from performer_string.ops.triton.backward_queries import feature_sums, merge_features, query_gradients
from performer_string.ops.triton.common import (
    LN2,
    columns,
    dot,
    key_penalty,
    key_response,
    load_half,
    load_mask,
    load_rotated,
    load_rows,
    relative_slope,
    store_rotated_back,
    store_rows,
)
from performer_string.ops.triton.launch import autotuned, compile_constants, count_splits


@autotuned(
    (64, 64, 4, 2), (64, 64, 8, 2), (32, 64, 4, 2), (32, 64, 8, 2), (64, 128, 8, 2), (64, 64, 8, 1),
    restore=("dcos", "dsin"),
)  # fmt: skip
def key_gradients(
    k, v, w, c, s, bias, mask, peaks, dvalues, dot_sums, dk, dv, dcos, dsin, dbias,
    H, N, square,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_cb, stride_ch, stride_cn, stride_maskb,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    D: tl.constexpr, HALF: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    ORDER: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, GRAD_PLANES: tl.constexpr,
    PRECISION: tl.constexpr, BUCKET, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write dk, dv and dbias, and add the keys' part of dc and ds to that of the queries."""
    pid = tl.program_id(0)
    blocks_n = tl.cdiv(N, BLOCK_N)
    rows, head = ((pid % blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64), (pid // blocks_n).to(tl.int64)
    b, h = head // H, head % H
    k, v, mask = k + b * stride_kb + h * stride_kh, v + b * stride_vb + h * stride_vh, mask + b * stride_maskb
    c, s = c + b * stride_cb + h * stride_ch, s + b * stride_cb + h * stride_ch
    dk, dv = dk + b * stride_dkb + h * stride_dkh, dv + b * stride_dvb + h * stride_dvh
    w, peaks, dot_sums, dvalues = w + h * M * D, peaks + head * M, dot_sums + head * M, dvalues + head * M * DV
    p, first, second = columns(D, HALF, P)
    exists, keep = rows < N, load_mask(mask, rows, N, HAS_MASK)
    y1, y2 = load_rotated(k, c, s, rows, stride_kn, stride_cn, keep, p, first, second, D, HALF, P)
    value = load_rows(v, rows, stride_vn, keep, DV, WIDE)
    penalty = key_penalty(y1, y2, bias + head * N, rows, keep, square, HAS_BIAS)
    g1 = tl.zeros([BLOCK_N, HALF], tl.float32)
    g2 = tl.zeros([BLOCK_N, HALF], tl.float32)
    by_norm = tl.zeros([BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_N, WIDE], tl.float32)
    for start in range(0, M, BLOCK_F):
        f = start + tl.arange(0, BLOCK_F)
        real = f < M
        w1 = load_half(w, f, D, real, p, first, D, HALF)
        w2 = load_half(w, f, D, real, p, second, D, HALF)
        dmeans = load_rows(dvalues, f, DV, real, DV, WIDE)
        dot_sum = tl.load(dot_sums + f, mask=real, other=0.0)
        peak = tl.load(peaks + f, mask=real, other=float("inf"))  # padded features are 0
        x = dot(y1, tl.trans(w1), None, PRECISION)
        x = dot(y2, tl.trans(w2), x, PRECISION)  # [BLOCK_N, BLOCK_F]
        x = key_response(x, penalty[:, None], keep[:, None], ORDER)
        by_feature = dot(value, tl.trans(dmeans), None, PRECISION)
        features, slope = relative_slope(x, peak[None, :], 1.0, ORDER)
        total = dot(features.to(value.dtype), dmeans, total, PRECISION)
        slope = slope * (by_feature - dot_sum[None, :])
        if ORDER == 0:
            by_norm += tl.sum(slope, 1)
        du = slope.to(w1.dtype)
        g1 = dot(du, w1, g1, PRECISION)
        g2 = dot(du, w2, g2, PRECISION)
    store_rows(dv, rows, stride_dvn, exists, total, DV, WIDE)
    if ORDER == 0:
        # Again, to save registers.
        y1, y2 = load_rotated(k, c, s, rows, stride_kn, stride_cn, keep, p, first, second, D, HALF, P)
        if HAS_BIAS:
            tl.store(dbias + head * N + rows, by_norm, mask=exists)
        by_norm = by_norm * 2 * square
        g1 = (g1 - by_norm[:, None] * y1.to(tl.float32)) * LN2
        g2 = (g2 - by_norm[:, None] * y2.to(tl.float32)) * LN2
    at = head * N * P
    store_rotated_back(
        dk, k, c, s, dcos + at, dsin + at, rows, stride_dkn, stride_kn, stride_cn, exists, keep, p, first, second,
        g1, g2, D, HALF, P, GRAD_PLANES, True,
    )  # fmt: skip


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, c: Tensor | None, s: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, saved: tuple[Tensor, ...], order: int, square: float, precision: str,
    grad_planes: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Run the backward pass.

    Args:
        dout: gradient of out, [B, H, N, dv], last dimension dense.
        q, k, v, weight, c, s, bias, mask, order, square, precision: see `forward`.
        saved: results of `forward`.
        grad_planes: whether the gradients of c and s are wanted.

    Returns:
        dq, dk, dv, and in float32 or None dc and ds [B, H, N, P] and dbias [B, H, N].
    """
    out, norms, values, levels, peaks = saved
    (batch, heads, tokens, _), width, m = q.shape, v.shape[-1], weight.shape[1]
    parts = count_splits(batch * heads, m, tokens, q)
    single = partial(torch.empty, device=q.device, dtype=torch.float32)
    sums, masses = single(batch, heads, parts, m, width), single(batch, heads, parts, m)
    out_dots, dot_sums, dvalues = single(batch, heads, tokens), single(batch, heads, m), torch.empty_like(values)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    planes = 0 if c is None else c.shape[-1]
    grad_planes = grad_planes and planes > 0
    dbias = out_dots if bias is None else torch.empty_like(bias)
    angles = (batch, heads, tokens, planes)
    dc, ds = (single(angles), single(angles)) if grad_planes else (out_dots, out_dots)
    shape = compile_constants(q, v, weight, c, order, precision)
    c, s = (q, q) if c is None or s is None else (c, s)  # not read without planes
    by_tokens = lambda meta: (triton.cdiv(tokens, meta["BLOCK_N"]) * batch * heads,)  # noqa: E731
    query_gradients[by_tokens](
        q, weight, c, s, levels, values, norms, out, dout, dq, out_dots, dc, ds,
        H=heads, N=tokens, GRAD_PLANES=grad_planes, **shape,
    )  # fmt: skip
    feature_sums[lambda meta: (triton.cdiv(m, meta["BLOCK_F"]) * parts * batch * heads,)](
        q, weight, c, s, levels, norms, out_dots, dout, sums, masses, H=heads, N=tokens, SPLITS=parts, **shape
    )
    merge_features[(triton.cdiv(m, 16) * batch * heads,)](
        sums, masses, levels, peaks, dvalues, dot_sums,
        SPLITS=parts, DV=width, WIDE=shape["WIDE"], M=m, ORDER=order, BLOCK_F=16,
    )  # fmt: skip
    key_gradients[by_tokens](
        k, v, weight, c, s, q if bias is None else bias, q if mask is None else mask, peaks, dvalues, dot_sums,
        dk, dv, dc, ds, dbias,
        H=heads, N=tokens, square=square,
        HAS_BIAS=bias is not None, HAS_MASK=mask is not None, GRAD_PLANES=grad_planes, **shape,
    )  # fmt: skip
    return dq, dk, dv, *((dc, ds) if grad_planes else (None, None)), None if bias is None else dbias
