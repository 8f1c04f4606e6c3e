"""Sums over the keys of one group of samples, in chunks of tokens: the base class for every kind of feature map.

Chunks are [H, B, C, .]. Heads come first, so that the projection of all samples of a head is one matrix product.
Features and sums are in float32 or better. Products with values may be in bf16; their results are summed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from performer_string.ops.forms import FeatureForm


def multiply_heads(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x times one matrix for each head, plus a bias.

    Args:
        x: input, [H, B, C, a].
        matrix: matrix of each head, [H, a, b].
        bias: bias, [H, B, C or 1, b or 1], or None.

    Returns:
        Products, [H, B, C, b].
    """
    rows = x.flatten(1, 2)  # [H, B C, a]
    if bias is not None and x.shape[1] == 1:  # one operation for both, where the bias has no axis of samples
        return torch.baddbmm(bias[:, 0], rows, matrix)[:, None]
    product = torch.bmm(rows, matrix).unflatten(1, x.shape[1:3])
    return product if bias is None else product.add_(bias)


def join(x: Tensor, *columns: Tensor) -> Tensor:
    """Return x with more columns, so that a bias is part of a matrix product: [x, b] [M, c]^T = x M^T + b c^T.

    Args:
        x: input, [..., n].
        columns: columns to append, [..., 1] or [1] each.

    Returns:
        Joined columns, [..., n + the number of columns].
    """
    return torch.cat([x, *(column.expand(*x.shape[:-1], 1) for column in columns)], dim=-1)


@dataclass(frozen=True)
class KeyChunk:
    """Chunk of keys with their values.

    Attributes:
        x: rotated keys in the type of the features, [H, B, C, d].
        v: values, [H, B, C, d_v].
        masked: mask of the keys, [1, B, C, 1], True for keys to ignore; or None.
        bias: bias of each key, added to the logarithms of its exponential features, [H, B, C, 1]; or None.
    """

    x: Tensor
    v: Tensor
    masked: Tensor | None
    bias: Tensor | None


class ChunkSums:
    """Sums over the keys that the queries of a group of samples need, and their gradients.

    Order of the calls forward: `begin`, `add_keys` for each chunk, `close`, `outputs` for each chunk of queries.
    Backward: `restore`, `backward_queries` for each chunk, `backward_close`, `backward_keys` for each chunk.

    Args:
        form: equation of the feature map.
        weight: weight W of the map, in the type of the features, [H, m, d].
        value_dtype: type of the products with values.
        learned: whether a gradient of W is wanted.

    Attributes:
        weight_gradient: gradient of W that the backward calls add to, [H, m, d], or None.
    """

    def __init__(self, form: FeatureForm, weight: Tensor, value_dtype: torch.dtype, learned: bool):
        self.form, self.weight, self.value_dtype = form, weight, value_dtype
        self.weight_gradient = torch.zeros_like(weight) if learned else None

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a b with operands in the type of the values, as float32 or better."""
        return (a.to(self.value_dtype) @ b.to(self.value_dtype)).to(self.weight.dtype)

    def backward_projection(self, gradient: Tensor, x: Tensor, factor: int = 1) -> Tensor:
        """Return the gradient of x from that of `factor` times x W^T, and add that of W to `weight_gradient`.

        Args:
            gradient: gradient of the product, [H, B, C, m].
            x: queries or keys, [H, B, C, d].
            factor: factor of both gradients.

        Returns:
            Gradient, [H, B, C, d].
        """
        if self.weight_gradient is not None:
            product = gradient.flatten(1, 2).mT @ x.flatten(1, 2)  # [H, m, B C] [H, B C, d]
            self.weight_gradient.add_(product, alpha=factor)
        product = multiply_heads(gradient, self.weight)
        return product if factor == 1 else product.mul_(factor)

    def begin(self, keys: Tensor, width: int, masked: Tensor | None) -> None:
        """Prepare for the first chunk.

        Args:
            keys: all keys of the group of samples, [H, B, N, d].
            width: width d_v of the values.
            masked: mask of the keys, [1, B, N, 1], True for keys to ignore; or None.
        """
        raise NotImplementedError

    def add_keys(self, keys: KeyChunk) -> None:
        """Add a chunk of keys to the sums."""
        raise NotImplementedError

    def close(self) -> tuple[Tensor, ...]:
        """Return the sums over all keys that `restore` takes in the backward pass, each [H, B, ...]."""
        raise NotImplementedError

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of a chunk of rotated queries: [H, B, C, d] -> [H, B, C, d_v]."""
        raise NotImplementedError

    def restore(self, state: tuple[Tensor, ...]) -> None:
        """Take the sums that `close` returned, and set their gradients to zero."""
        raise NotImplementedError

    def backward_queries(self, x: Tensor, out: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of a chunk of rotated queries, and add to the gradients of the sums.

        Args:
            x: rotated queries, [H, B, C, d].
            out, gradient: outputs and their gradient, [H, B, C, d_v].

        Returns:
            Gradient, [H, B, C, d].
        """
        raise NotImplementedError

    def backward_close(self) -> None:
        """Finish the gradients of the sums between the queries and the keys."""

    def backward_keys(self, keys: KeyChunk) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of a chunk of rotated keys, of its values and of its bias.

        Returns:
            Gradients, [H, B, C, d], [H, B, C, d_v], and [H, B, C, 1] or None where the features take no bias.
        """
        raise NotImplementedError
