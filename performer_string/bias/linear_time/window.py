"""The sum over a window of a grid: sum_j lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j over the tokens j around i.

The tokens of a tile share one window, and pairs outside it are left out. `Windows` cuts the grid and multiplies inside
its windows, in one of two ways: `narrow_windows` for a CPU, `whole_tiles` for a GPU. Only the features of one chunk of
tiles and of the keys around it are in memory. The backward pass computes them again. Time is N W (m + d) for W tokens
in a window, memory N d. Source: the project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from performer_string.bias.linear_time.inputs import SumInputs
from performer_string.bias.linear_time.recompute import FeatureSource, Recomputed, chunk_tokens
from performer_string.utils.autograd import first_order

Bias = Callable[[Tensor], Tensor]  # offsets [..., 3] in patches -> lambda, [H, ...]


class Windows:
    """A grid cut into tiles with their windows, and the products inside these.

    A chunk is an object with the slices `tokens` of its queries and `keys` of the keys in their windows, both among the
    tokens of the grid.
    """

    def table(self, bias: Bias, like: Tensor) -> Tensor:
        """Return lambda from each token of a tile to each of its window, in a form of one's own.

        Args:
            bias: function that returns lambda of offsets; differentiable in its parameters.
            like: tensor of the device and type of the result.
        """
        raise NotImplementedError

    def chunks(self, max_tokens: int) -> Sequence[Any]:
        """Return chunks of about `max_tokens` tokens, or of one row of tiles; one chunk where all tokens fit."""
        raise NotImplementedError

    def write_sums(self, chunk: Any, table: Tensor, fq: Tensor, fk: Tensor, v: Tensor, out: Tensor) -> None:
        """Write sum_j table_ij (fq_i . fk_j) v_j of a chunk.

        Args:
            chunk: the chunk.
            table: result of `table`.
            fq, fk: features of its queries and keys, [B, H, n, m] and [B, H, n', m].
            v: values of its keys, [B, H, n', d].
            out: sums to overwrite, [B, H, n, d].
        """
        raise NotImplementedError

    def gradients(
        self, chunk: Any, table: Tensor, table_grad: Tensor, fq: Tensor, fk: Tensor, v: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of fq, fk and v from that of the sums, g [B, H, n, d]; add to that of the table."""
        raise NotImplementedError


class _WindowSum(torch.autograd.Function):
    """out_i = sum_(j in window) table_ij (fq_i . fk_j) v_j, with one more column: fq_i . key_sums."""

    @staticmethod
    def forward(ctx: Any, source: FeatureSource, windows: Windows, table: Tensor, *tensors: Any) -> Tensor:
        masked, q, k, v, key_sums, *_ = tensors  # of `SumInputs.tensors`
        ctx.save_for_backward(table, *tensors)
        ctx.source, ctx.windows = source, windows
        out = v.new_zeros(*v.shape[:-1], v.shape[-1] + 1)
        for chunk in windows.chunks(chunk_tokens(q, source.size)):
            fq = source.queries(q[:, :, chunk.tokens])
            fk = source.keys(k[:, :, chunk.keys], None if masked is None else masked[:, :, chunk.keys])
            windows.write_sums(chunk, table, fq, fk, v[:, :, chunk.keys], out[:, :, chunk.tokens, :-1])
            total = fk.sum(2)[..., None] if key_sums is None else key_sums  # [B, H, m, 1 or d + 1]
            out[:, :, chunk.tokens, -total.shape[-1] :] += fq @ total
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        table, masked, q, k, v, key_sums, *learned = saved
        source, windows = ctx.source, ctx.windows
        q_grad, k_grad, v_grad, table_grad, *learned_grads = (torch.zeros_like(x) for x in (q, k, v, table, *learned))
        key_sums_grad = None if key_sums is None else torch.zeros_like(key_sums)
        for chunk in windows.chunks(chunk_tokens(q, source.size)):
            queries = Recomputed(source.queries, q[:, :, chunk.tokens])
            keys = Recomputed(source.keys, k[:, :, chunk.keys], None if masked is None else masked[:, :, chunk.keys])
            fq, fk, g = queries.features, keys.features, gradient[:, :, chunk.tokens]
            queries.grad, keys.grad, dv = windows.gradients(
                chunk, table, table_grad, fq, fk, v[:, :, chunk.keys], g[..., :-1]
            )
            total = fk.sum(2)[..., None] if key_sums is None else key_sums
            g = g[..., -total.shape[-1] :]
            queries.grad += g @ total.mT
            if key_sums_grad is None:
                keys.grad += (fq.mT @ g).mT
            else:
                key_sums_grad += fq.mT @ g
            q_grad[:, :, chunk.tokens] = queries.backward(learned, learned_grads)
            k_grad[:, :, chunk.keys] += keys.backward(learned, learned_grads)
            v_grad[:, :, chunk.keys] += dv
        return None, None, table_grad, None, q_grad, k_grad, v_grad, key_sums_grad, *learned_grads


def window_sum(inputs: SumInputs, bias: Bias, windows: Windows) -> Tensor:
    """Return the sum over windows of lambda(p_i - p_j) phi(q_i)^T phi(k_j) v_j, with one more column.

    Args:
        inputs: tokens and values; with `key_sums` where the features of all keys are more than one chunk.
        bias: function that returns lambda of offsets [..., 3] in patches, [H, ...]; differentiable in its parameters.
        windows: windows of the grid, which contain a radius around each token.

    Returns:
        Sums, [B, H, N, d + 1]; the last column is phi(q_i)^T sum_j phi(k_j).
    """
    table = windows.table(bias, inputs.v)
    out: Tensor = _WindowSum.apply(inputs.source, windows, table, *inputs.tensors)
    return out
