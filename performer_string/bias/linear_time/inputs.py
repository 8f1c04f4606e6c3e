"""Inputs of every sum over a grid: tokens, values, source of the features and mask; and tokens sorted by cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.bias.linear_time.recompute import FeatureSource
from performer_string.ops.layout import Grid, Triple


@dataclass(frozen=True, eq=False)
class SumInputs:
    """Queries, keys and values of a sum over a grid, and the other inputs of the sum.

    Attributes:
        source: source of the features of these heads.
        q, k: tokens that the source computes features of, [B, H, N, .].
        v: values, [B, H, N, d].
        grid: grid of the tokens.
        masked: mask of the keys, [B, 1, N, 1], True for masked keys.
        key_sums: sums over keys without lambda. [B, H, m, d + 1]: phi(q_i)^T key_sums is added, and its last column is
            the sum over all keys. [B, H, m, 1]: that column alone. None: the sum over the keys k.
        products: type of the operands of products in windows of whole tiles, on a GPU; that of v by default.
    """

    source: FeatureSource
    q: Tensor
    k: Tensor
    v: Tensor
    grid: Grid
    masked: Tensor | None = None
    key_sums: Tensor | None = None
    products: torch.dtype | None = None

    @property
    def heads(self) -> int:
        """Number H of heads."""
        return self.q.shape[1]

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Last arguments of each autograd function: masked, q, k, v, key_sums and the learned tensors."""
        return self.masked, self.q, self.k, self.v, self.key_sums, *self.source.learned

    @cached_property
    def _by_head(self) -> tuple[tuple[Tensor, ...], ...]:
        """Queries, keys and values of each head; the gradient of an index would be as large as all heads each time."""
        return self.q.unbind(1), self.k.unbind(1), self.v.unbind(1)

    def select_heads(self, heads: list[int]) -> SumInputs:
        """Return the inputs of some heads, in rising order."""
        if len(heads) == self.heads:
            return self
        q, k, v = (torch.stack([x[h] for h in heads], dim=1) for x in self._by_head)
        key_sums = None if self.key_sums is None else self.key_sums[:, heads]
        return replace(self, source=self.source.select_heads(heads), q=q, k=k, v=v, key_sums=key_sums)

    def each_head(self, arrange: Callable[[Tensor], Tensor], full: bool) -> Iterator[SumInputs]:
        """Yield the inputs of each head, without the axis of heads, with their tokens arranged in another way.

        Args:
            arrange: function that arranges tokens [B, N, c], with zeros in places that hold none.
            full: whether each place holds a token. The others are masked.
        """
        masked = self.masked
        if masked is None and not full:
            masked = torch.zeros(1, 1, self.grid.tokens, 1, dtype=torch.bool, device=self.v.device)
        if masked is not None:
            masked = arrange((~masked[:, 0]).to(torch.uint8)) == 0
        for h, tokens in enumerate(zip(*self._by_head, strict=True)):
            q, k, v = map(arrange, tokens)
            key_sums = None if self.key_sums is None else self.key_sums[:, h]
            yield replace(self, source=self.source.select_heads(h), q=q, k=k, v=v, masked=masked, key_sums=key_sums)


def to_cells(x: Tensor, shape: Triple, cell: Triple) -> Tensor:
    """Return tokens sorted by cells, with zeros where a cell reaches over the edge: [B, N, c] -> [cells, B, S, c]."""
    x = x.unflatten(1, shape)  # [B, n_0, n_1, n_2, c]
    over = [-n % s for n, s in zip(shape, cell, strict=True)]
    if any(over):
        x = F.pad(x, (0, 0, 0, over[2], 0, over[1], 0, over[0]))
    for axis in (2, 1, 0):
        x = x.unflatten(axis + 1, (-1, cell[axis]))
    x = x.permute(1, 3, 5, 0, 2, 4, 6, 7)  # [c_0, c_1, c_2, B, s_0, s_1, s_2, c]
    return x.flatten(4, 6).flatten(0, 2)  # [cells, B, S, c]


def from_cells(x: Tensor, shape: Triple, cell: Triple) -> Tensor:
    """Return tokens in row-major order, the inverse of `to_cells`: [cells, B, S, c] -> [B, N, c]."""
    counts = [-(-n // s) for n, s in zip(shape, cell, strict=True)]
    x = x.unflatten(2, cell).unflatten(0, counts)  # [c_0, c_1, c_2, B, s_0, s_1, s_2, c]
    x = x.permute(3, 0, 4, 1, 5, 2, 6, 7).flatten(5, 6).flatten(3, 4).flatten(1, 2)
    return x[:, : shape[0], : shape[1], : shape[2]].flatten(1, 3)  # [B, N, c]
