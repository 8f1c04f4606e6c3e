"""Backward pass of fused attention with a polynomial kernel of degree 2. Weights are computed again, in blocks.

With P_ij = w_ij / sum_j w_ij, D_i = dout_i . out_i and d_ij = dout_i . v_j - D_i, in the notation of `forward`:

    dv_j = sum_i P_ij dout_i,   db_j = sum_i P_ij d_ij,   r_j = exp(b_j / 2)
    ds_ij = 2 (f / K) r_j y_ij d_ij / sum_j w_ij,   f = s with the lower orders and else 1
    dq_i = p_i sum_j ds_ij k_j,   dk_j = sum_i ds_ij p_i q_i

Factors of a query alone are left out of the sum of dq, and factors of a key alone out of that of dk. Operands in 16
bits are then in range for queries and keys of any norm. Each sum is of one program, so that the same inputs give the
same bits. Products are 4 d + 3 dv for each pair, against d + dv forward.
"""

# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from performer_string.ops.triton.common import dot, load_mask, load_rows, store_rows
from performer_string.ops.triton.launch import autotuned
from performer_string.ops.triton.square_forward import BLOCKS, CHOICE, query_shrink, scaled_queries, square_constants


@autotuned((64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (128, 64, 4, 2), names=BLOCKS, key=CHOICE)
def square_query_gradients(
    q, k, v, roots, mask, scales, inverses, out, dout, dq, small, shrinks, out_dots,
    H, NQ, NK, scale,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_maskb,
    stride_outb, stride_outh, stride_outn, stride_doutb, stride_douth, stride_doutn, stride_dqb, stride_dqh, stride_dqn,
    D: tl.constexpr, WIDE_D: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, LOWER: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, BUCKET,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write dq, and for `square_key_gradients` the scaled queries [B H, Nq, d] with p and D [B H, Nq] in float32."""
    pid = tl.program_id(0)
    blocks = tl.cdiv(NQ, BLOCK_Q)
    rows, head = ((pid % blocks) * BLOCK_Q + tl.arange(0, BLOCK_Q)).to(tl.int64), (pid // blocks).to(tl.int64)
    b, h = head // H, head % H
    k, v, mask = k + b * stride_kb + h * stride_kh, v + b * stride_vb + h * stride_vh, mask + b * stride_maskb
    real = rows < NQ
    queries = load_rows(q + b * stride_qb + h * stride_qh, rows, stride_qn, real, D, WIDE_D)
    shrink = query_shrink(queries, scale, LOWER)
    queries = scaled_queries(queries, shrink)
    g = load_rows(dout + b * stride_doutb + h * stride_douth, rows, stride_doutn, real, DV, WIDE)
    result = load_rows(out + b * stride_outb + h * stride_outh, rows, stride_outn, real, DV, WIDE)
    out_dot = tl.sum(g.to(tl.float32) * result.to(tl.float32), 1)
    tl.store(shrinks + head * NQ + rows, shrink, mask=real)
    tl.store(out_dots + head * NQ + rows, out_dot, mask=real)
    store_rows(small + head * NQ * D, rows, D, real, queries, D, WIDE_D)
    unit = tl.load(scales + head)
    factor = unit * scale if LOWER else unit
    offset = unit * shrink
    total = tl.zeros([BLOCK_Q, WIDE_D], tl.float32)
    for start in range(0, NK, BLOCK_K):
        cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        keep = load_mask(mask, cols, NK, HAS_MASK)
        keys = load_rows(k, cols, stride_kn, keep, D, WIDE_D)  # zeros where masked, which add nothing
        values = load_rows(v, cols, stride_vn, keep, DV, WIDE)
        y = dot(queries, tl.trans(keys), None, PRECISION) * factor  # [BLOCK_Q, BLOCK_K]
        if LOWER:
            y += offset[:, None]
        if HAS_BIAS:
            root = tl.load(roots + head * NK + cols, mask=keep, other=0.0)
            y = y * root[None, :] * root[None, :]
        slope = y * (dot(g, tl.trans(values), None, PRECISION) - out_dot[:, None])
        total = dot(slope.to(keys.dtype), keys, total, PRECISION)
    inverse = tl.load(inverses + head * NQ + rows, mask=real, other=0.0)
    total = total * (2.0 * factor) * inverse[:, None] * shrink[:, None]
    store_rows(dq + b * stride_dqb + h * stride_dqh, rows, stride_dqn, real, total, D, WIDE_D)


@autotuned((32, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2), (64, 64, 8, 3), names=BLOCKS, key=CHOICE)
def square_key_gradients(
    small, k, v, roots, mask, scales, inverses, shrinks, out_dots, dout, dk, dv, dbias,
    H, NQ, NK, scale,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_maskb, stride_doutb, stride_douth,
    stride_doutn, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    D: tl.constexpr, WIDE_D: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, LOWER: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, BUCKET,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write dk and dv, and db [B H, Nk] in float32, zero where masked."""
    pid = tl.program_id(0)
    blocks = tl.cdiv(NK, BLOCK_K)
    cols, head = ((pid % blocks) * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64), (pid // blocks).to(tl.int64)
    b, h = head // H, head % H
    exists, keep = cols < NK, load_mask(mask + b * stride_maskb, cols, NK, HAS_MASK)
    keys = load_rows(k + b * stride_kb + h * stride_kh, cols, stride_kn, keep, D, WIDE_D)
    values = load_rows(v + b * stride_vb + h * stride_vh, cols, stride_vn, keep, DV, WIDE)
    dout, small = dout + b * stride_doutb + h * stride_douth, small + head * NQ * D
    inverses, shrinks, out_dots = inverses + head * NQ, shrinks + head * NQ, out_dots + head * NQ
    unit = tl.load(scales + head)
    factor = unit * scale if LOWER else unit
    if HAS_BIAS:
        root = tl.load(roots + head * NK + cols, mask=keep, other=0.0)
    by_bias = tl.zeros([BLOCK_K], tl.float32)
    by_key = tl.zeros([BLOCK_K, WIDE_D], tl.float32)
    by_value = tl.zeros([BLOCK_K, WIDE], tl.float32)
    for start in range(0, NQ, BLOCK_Q):
        rows = (start + tl.arange(0, BLOCK_Q)).to(tl.int64)
        real = rows < NQ
        queries = load_rows(small, rows, D, real, D, WIDE_D)
        g = load_rows(dout, rows, stride_doutn, real, DV, WIDE)
        inverse = tl.load(inverses + rows, mask=real, other=0.0)
        out_dot = tl.load(out_dots + rows, mask=real, other=0.0)
        y = dot(keys, tl.trans(queries), None, PRECISION) * factor  # [BLOCK_K, BLOCK_Q]
        if LOWER:
            offset = unit * tl.load(shrinks + rows, mask=real, other=0.0)
            y += offset[None, :]
        if HAS_BIAS:
            y *= root[:, None]
        slope = y * inverse[None, :]
        weights = slope * y
        if LOWER:
            constant = offset * offset * inverse
            if HAS_BIAS:
                weights += constant[None, :] * (root * root)[:, None]
            else:
                weights += constant[None, :]
        difference = dot(values, tl.trans(g), None, PRECISION) - out_dot[None, :]
        by_value = dot(weights.to(g.dtype), g, by_value, PRECISION)
        if HAS_BIAS:
            by_bias += tl.sum(weights * difference, 1)
        by_key = dot((slope * difference).to(queries.dtype), queries, by_key, PRECISION)
    by_key = by_key * (2.0 * factor)
    if HAS_BIAS:
        by_key = by_key * root[:, None]
        tl.store(dbias + head * NK + cols, tl.where(keep, by_bias, 0.0), mask=exists)
    dk, dv = dk + b * stride_dkb + h * stride_dkh, dv + b * stride_dvb + h * stride_dvh
    store_rows(dk, cols, stride_dkn, exists, tl.where(keep[:, None], by_key, 0.0), D, WIDE_D)
    store_rows(dv, cols, stride_dvn, exists, tl.where(keep[:, None], by_value, 0.0), DV, WIDE)


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, roots: Tensor | None, mask: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor], scale: float, lower: bool, precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Run the backward pass.

    Args:
        dout: gradient of out, [B, H, Nq, dv], last dimension dense.
        q, k, v, roots, mask, scale, lower, precision: see `forward`.
        saved: results of `forward`.

    Returns:
        dq, dk, dv, and db [B, H, Nk] in float32 or None.
    """
    out, inverses, scales = saved
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    small = torch.empty(batch, heads, queries, d, device=q.device, dtype=q.dtype)
    shrinks, out_dots = torch.empty_like(inverses), torch.empty_like(inverses)
    dbias = None if roots is None else torch.empty_like(roots)
    shape = square_constants(q, v, roots, mask, lower, precision)
    options = q if roots is None else roots, q if mask is None else mask  # not read where they are None
    square_query_gradients[lambda meta: (triton.cdiv(queries, meta["BLOCK_Q"]) * batch * heads,)](
        q, k, v, *options, scales, inverses, out, dout, dq, small, shrinks, out_dots,
        H=heads, NQ=queries, NK=keys, scale=scale, **shape,
    )  # fmt: skip
    square_key_gradients[lambda meta: (triton.cdiv(keys, meta["BLOCK_K"]) * batch * heads,)](
        small, k, v, *options, scales, inverses, shrinks, out_dots, dout, dk, dv, shrinks if dbias is None else dbias,
        H=heads, NQ=queries, NK=keys, scale=scale, **shape,
    )  # fmt: skip
    return dq, dk, dv, dbias
