"""Embedding of patches between two layer norms."""

from __future__ import annotations

from torch import Tensor, nn


class NormalisedEmbedding(nn.Linear):
    """Linear embedding of patches with a layer norm before and after it.

        y = norm(W norm(x) + b)

    Brightness and contrast of a patch do not matter: a x + c has the same embedding for every a > 0 and c, up to eps.
    All patches of one colour have the same embedding, which the bias sets.

    Args:
        pixels: number of values in a patch, over all channels.
        width: width D of the embedding.
        eps: epsilon of both norms.

    Source: arXiv:2302.01327 (Dual PatchNorm).
    """

    def __init__(self, pixels: int, width: int, eps: float):
        super().__init__(pixels, width)
        self.before, self.after = nn.LayerNorm(pixels, eps), nn.LayerNorm(width, eps)

    def forward(self, patches: Tensor) -> Tensor:
        """Return the embedding of patches: [B, N, pixels] -> [B, N, D]."""
        embedded: Tensor = self.after(super().forward(self.before(patches)))
        return embedded
