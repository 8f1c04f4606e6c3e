"""What every structure on the values has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from performer_string.encodings.base import Sizes
from performer_string.locality.lattice import Lattice

Sum = Callable[[Tensor], Tensor]  # v -> A v, [B, H, N, d] to the same


@dataclass(frozen=True)
class Surroundings:
    """What a structure on the values may look at beside them.

    Attributes:
        tokens: what queries, keys and values were projected from, [B, N, H d].
        queries: as attention gets them, before their rotation, [B, H, N, d].
        positions: of the tokens, [N, C], or [B, N, C] where each sample has its own.
        places: the same, or [B, N, C] where samples differ by a move, which differences do not see.
        num_prefix: leading tokens without a position.
        key_mask: [B, N], True where a token takes part; None for all.
        lattice: the grid of the tokens behind the prefix, where it is known without a look at their positions.
    """

    tokens: Tensor
    queries: Tensor
    positions: Tensor
    places: Tensor
    num_prefix: int = 0
    key_mask: Tensor | None = None
    lattice: Lattice | None = None


class ValueMap(nn.Module):
    """Wraps the weighted sum of attention.

    Args:
        sizes: the attention it serves.

    Attributes:
        needs_grid: whether positions have to be a regular grid.
    """

    needs_grid: bool = False

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.head_dim, self.num_heads = sizes.head_dim, sizes.num_heads

    def forward(self, attend: Sum, v: Tensor, around: Surroundings) -> Tensor:
        """The outputs of attention, [B, H, N, d].

        Args:
            attend: v -> A v.
            v: values, [B, H, N, d].
            around: what else there is to see.
        """
        raise NotImplementedError
