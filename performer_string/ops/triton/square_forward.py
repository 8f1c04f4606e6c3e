"""Forward pass of fused attention with a polynomial kernel of degree 2, by N x N weights in blocks.

    w_ij = r_j^2 (y_ij^2 + e_i^2),   y_ij = (s q_i^T k_j + 1) p_i / K,   e_i = p_i / K           (with the lower orders)
    w_ij = r_j^2 y_ij^2,   y_ij = p_i q_i^T k_j / K                                                       (without them)
    out_i = sum_j w_ij v_j / sum_j w_ij

r_j^2 is the weight of a key. K is the largest norm of the keys [s^1/2 k, 1] r, and p_i the power of two that brings the
norm of the query to [1, 2). So weights stay in range, and the scaled query p_i q_i is exact in any type. These factors
cancel, and have no gradient. GAIN lifts the weights, so that small ones are not lost in fp16.

The blocks are those of flash attention. There is no maximum to follow and no exponential.
"""

# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from performer_string.ops.triton.common import dot, load_mask, load_rows, store_rows
from performer_string.ops.triton.launch import SHORT, QuickLaunch, autotuned

GAIN = tl.constexpr(64.0)  # factor of y; with y < 2 and e < 2 weights stay below 2^15
LEAST = tl.constexpr(2.0**-63)  # the smallest norm whose square is a normal number
LARGEST = tl.constexpr(2.0**126)
SMALLEST_SUM = tl.constexpr(2.0**-88.2)  # as in `safe_denominator`

BLOCKS = ("BLOCK_Q", "BLOCK_K")
CHOICE = ("D", "DV", "LOWER", "PRECISION", "BUCKET")  # arguments that block sizes are chosen for


@triton.jit
def query_shrink(x, scale, LOWER: tl.constexpr):
    """Return the power of two p of each query, from x [rows, D] in its own type: [rows]."""
    square = tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
    norm = tl.sqrt(scale * square + 1.0) if LOWER else tl.sqrt(square)
    norm = tl.minimum(tl.maximum(norm, LEAST), LARGEST)
    exponent = norm.to(tl.int32, bitcast=True) & 0x7F800000
    return (0x7F000000 - exponent).to(tl.float32, bitcast=True)


@triton.jit
def scaled_queries(x, shrink):
    """Return the queries times their powers of two, in their own type."""
    return (x.to(tl.float32) * shrink[:, None]).to(x.dtype)


@QuickLaunch
@triton.jit
def key_scale(
    k, roots, mask, scales,
    H, N, scale,
    stride_kb, stride_kh, stride_kn, stride_maskb,
    D: tl.constexpr, WIDE_D: tl.constexpr, LOWER: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write 1 / K of each head, [B H] in float32."""
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    k, mask = k + b * stride_kb + h * stride_kh, mask + b * stride_maskb
    largest = tl.zeros([BLOCK_K], tl.float32)
    for start in range(0, N, BLOCK_K):
        cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        keep = load_mask(mask, cols, N, HAS_MASK)
        x = load_rows(k, cols, stride_kn, keep, D, WIDE_D).to(tl.float32)
        square = tl.sum(x * x, 1)
        norm = tl.sqrt(scale * square + 1.0) if LOWER else tl.sqrt(square)
        if HAS_BIAS:
            norm *= tl.load(roots + head * N + cols, mask=keep, other=0.0)
        largest = tl.maximum(largest, tl.where(keep, norm, 0.0))
    norm = tl.max(largest, 0)
    norm = tl.where(norm > 0, norm, 1.0)  # no key at all, or all of zero
    tl.store(scales + head, 1.0 / tl.maximum(norm, LEAST))


@autotuned((64, 64, 4, 2), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), names=BLOCKS, key=CHOICE)
def square_attend(
    q, k, v, roots, mask, scales, out, inverses,
    H, NQ, NK, scale,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_maskb,
    stride_outb, stride_outh, stride_outn,
    D: tl.constexpr, WIDE_D: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, LOWER: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, BUCKET,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [B, H, Nq, dv], and 1 / sum_j w_ij [B H, Nq] in float32, zero where the sum is."""
    pid = tl.program_id(0)
    blocks = tl.cdiv(NQ, BLOCK_Q)
    rows, head = ((pid % blocks) * BLOCK_Q + tl.arange(0, BLOCK_Q)).to(tl.int64), (pid // blocks).to(tl.int64)
    b, h = head // H, head % H
    k, v, mask = k + b * stride_kb + h * stride_kh, v + b * stride_vb + h * stride_vh, mask + b * stride_maskb
    real = rows < NQ
    queries = load_rows(q + b * stride_qb + h * stride_qh, rows, stride_qn, real, D, WIDE_D)
    shrink = query_shrink(queries, scale, LOWER)
    queries = scaled_queries(queries, shrink)
    unit = tl.load(scales + head) * GAIN
    factor = unit * scale if LOWER else unit
    offset = unit * shrink
    mass = tl.zeros([BLOCK_Q], tl.float32)
    total = tl.zeros([BLOCK_Q, WIDE], tl.float32)
    for start in range(0, NK, BLOCK_K):
        cols = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        keep = load_mask(mask, cols, NK, HAS_MASK)
        keys = load_rows(k, cols, stride_kn, keep, D, WIDE_D)
        values = load_rows(v, cols, stride_vn, keep, DV, WIDE)
        y = dot(queries, tl.trans(keys), None, PRECISION) * factor  # [BLOCK_Q, BLOCK_K]
        if LOWER:
            y += offset[:, None]
        if HAS_BIAS:
            root = tl.load(roots + head * NK + cols, mask=keep, other=0.0)
            y *= root[None, :]
        weights = y * y
        if LOWER:
            if HAS_BIAS:
                weights += (offset * offset)[:, None] * (root * root)[None, :]
            else:
                weights = tl.where(keep[None, :], weights + (offset * offset)[:, None], 0.0)
        mass += tl.sum(weights, 1)
        total = dot(weights.to(values.dtype), values, total, PRECISION)
    mass = mass * (1.0 / (GAIN * GAIN))
    inverse = tl.where(mass > SMALLEST_SUM, 1.0 / tl.where(mass > SMALLEST_SUM, mass, 1.0), 0.0)
    tl.store(inverses + head * NQ + rows, inverse, mask=real)
    total = total * (1.0 / (GAIN * GAIN))
    store_rows(out + b * stride_outb + h * stride_outh, rows, stride_outn, real, total * inverse[:, None], DV, WIDE)


def square_constants(
    q: Tensor, v: Tensor, roots: Tensor | None, mask: Tensor | None, lower: bool, precision: str
) -> dict[str, Any]:
    """Return the constants that the kernels are compiled for. Matrix units take no side below 16."""
    d, dv = q.shape[-1], v.shape[-1]
    tokens = max(q.shape[2], v.shape[2])
    return {
        "D": d, "WIDE_D": max(16, triton.next_power_of_2(d)), "DV": dv, "WIDE": max(16, triton.next_power_of_2(dv)),
        "LOWER": lower, "HAS_BIAS": roots is not None, "HAS_MASK": mask is not None, "PRECISION": precision,
        "BUCKET": max(SHORT, tokens.bit_length()),
    }  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, roots: Tensor | None, mask: Tensor | None, scale: float, lower: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run the forward pass.

    Args:
        q, k, v: queries, keys and values, [B, H, Nq, d], [B, H, Nk, d], [B, H, Nk, dv], of one type, last dimension
            dense.
        roots: roots r of the keys' weights, [B, H, Nk], float32, dense.
        mask: mask of the keys, [B, Nk], True for keys that take part, last dimension dense.
        scale: scale s of the logits, with the lower orders.
        lower: whether the kernel has the lower orders.
        precision: precision of float32 products, `ieee` or `tf32`.

    Returns:
        out [B, H, Nq, dv], and in float32 1 / sum_j w_ij [B, H, Nq] and 1 / K [B, H].
    """
    (batch, heads, queries, _), keys, dv = q.shape, k.shape[2], v.shape[-1]
    scales = torch.empty(batch, heads, device=q.device, dtype=torch.float32)
    inverses = torch.empty(batch, heads, queries, device=q.device, dtype=torch.float32)
    # Heads side by side in memory, as the output projection takes them.
    out = torch.empty(batch, queries, heads, dv, device=q.device, dtype=q.dtype).transpose(1, 2)
    shape = square_constants(q, v, roots, mask, lower, precision)
    known = {name: shape[name] for name in ("D", "WIDE_D", "LOWER", "HAS_BIAS", "HAS_MASK")}
    options = q if roots is None else roots, q if mask is None else mask  # not read where they are None
    key_scale[(batch * heads,)](k, *options, scales, H=heads, N=keys, scale=scale, **known, BLOCK_K=64)
    square_attend[lambda meta: (triton.cdiv(queries, meta["BLOCK_Q"]) * batch * heads,)](
        q, k, v, *options, scales, out, inverses, H=heads, NQ=queries, NK=keys, scale=scale, **shape
    )
    return out, inverses, scales
