"""The interface of a value map."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from performer_string.ops.layout import TokenLayout
from performer_string.position.base import Sizes

Weighted = Callable[[Tensor], Tensor]  # the weighted sum over the keys, v -> A v, [B, H, N, d] to the same


class ValueMap(nn.Module):
    """A function of attention and its values: it changes the values before the sum over keys, or the outputs after it.

    Args:
        sizes: sizes of the attention.

    Attributes:
        counts_patches: whether positions must be in patches.
        convolves: whether it reads the neighbours of a patch, so that it needs all patches of an image.
    """

    counts_patches: bool = False
    convolves: bool = False

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.head_dim, self.num_heads = sizes.head_dim, sizes.num_heads

    def forward(self, attend: Weighted, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return the outputs of attention.

        Args:
            attend: function that computes the weighted sum over the keys, v -> A v.
            v: values, [B, H, N, d].
            tokens: tokens from which queries, keys and values were projected, [B, N, H d].
            queries: queries before their rotation, [B, H, N, d'].
            layout: layout of the tokens: their positions, and which take part.

        Returns:
            Outputs, [B, H, N, d].
        """
        raise NotImplementedError
