"""Orthogonal random projections as a function of a seed, and feature maps made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from performer_string.feature_maps.base import ALL, FeatureMap, Heads
from performer_string.utils._compat import version_of
from performer_string.utils.dtype import full_precision, without_autocast
from performer_string.utils.seeds import derive_seed


def orthogonal_projection(num_heads: int, rows: int, dim: int, seed: int) -> Tensor:
    """Return random rows w ~ N(0, I_d) that are orthogonal in blocks of d.

    The blocks are Haar-distributed orthogonal matrices, with chi-distributed norms of the rows. The columns of QR's Q
    are multiplied by sign(diag R): LAPACK's sign convention is not Haar, and the estimate would be biased. The draw is
    on the CPU in float64, so that it is the same on every device. Source: arXiv:2009.14794, section 2.4.

    Args:
        num_heads: number H of heads, each with its own rows.
        rows: number m of rows of each head.
        dim: width d of a row.
        seed: seed of the random projection.

    Returns:
        Projections, [H, m, d], in float32.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = math.ceil(rows / dim)

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    q, r = torch.linalg.qr(gaussian(num_heads, blocks, dim, dim))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    norms = gaussian(num_heads, blocks * dim, dim).norm(dim=-1)
    return (q.flatten(1, 2) * norms[..., None])[:, :rows].float().contiguous()  # [H, blocks d, d] -> [H, rows, d]


class RandomFeatures(FeatureMap):
    """Feature map with a random projection W, the draw of (seed, step).

    The projection is a buffer, or a parameter if it is learned, and is saved with a checkpoint either way. Every rank
    and every resumed run draws the same projection.

    Args:
        head_dim: width d of a head.
        num_heads: number H of heads, each with its own rows.
        num_features: width m of phi.
        seed: seed of the random projection.
        learned: whether the projection is a parameter that starts as the draw. A learned projection is not isotropic,
            so that attention is translation invariant in expectation at the start only.
    """

    projection: Tensor

    def __init__(self, head_dim: int, num_heads: int, num_features: int = 256, seed: int = 0, *, learned: bool = False):
        super().__init__(head_dim, num_heads, num_features)
        self.seed, self.learned = seed, learned
        projection = self.draw(0).to(torch.get_default_device())  # drawn on the CPU, so that it is the same everywhere
        if learned:
            self.projection = nn.Parameter(projection)
        else:
            self.register_buffer("projection", projection)

    def num_projections(self) -> int:
        """Return the number of rows of W, m by default."""
        return self.num_features

    def draw(self, step: int) -> Tensor:
        """Return the projection of (seed, step), [H, rows, d]."""
        return orthogonal_projection(
            self.num_heads, self.num_projections(), self.head_dim, derive_seed(self.seed, step)
        )

    @property
    def has_random_features(self) -> bool:
        """Whether `redraw` draws another projection: not one that is learned."""
        return not self.learned

    @torch.no_grad()
    def redraw(self, step: int) -> None:
        """Overwrite the projection with that of (seed, step).

        Args:
            step: index of the training step.

        Raises:
            ValueError: a learned projection, which is not redrawn.
        """
        if self.learned:
            raise ValueError("learned projections are not redrawn: leave out redraw_every, or the option learned.")
        self.projection.copy_(self.draw(step))

    def _apply(self, *arguments: Any, **options: Any) -> RandomFeatures:
        had_values = not self.projection.is_meta
        super()._apply(*arguments, **options)
        whole = not hasattr(self.projection, "__tensor_flatten__")  # no part of a learned one that `fully_shard` shards
        if whole and not had_values and not self.projection.is_meta:  # `to_empty`, or the weights of a model of timm
            with torch.no_grad():
                self.projection.copy_(self.draw(0))
        return self

    def exact_projection(self) -> Tensor:
        """Return W in float32 or better, also for a module of a smaller type, [H, rows, d]."""
        return full_precision(self.projection)

    def project(self, x: Tensor, heads: Heads = ALL) -> Tensor:
        """Return W x in float32 or better, under autocast too.

        Args:
            x: queries or keys, [.., H', N, d] of these heads, or [.., d] of one.
            heads: index of the heads whose features are computed: a slice, a list or a number.

        Returns:
            Projected queries or keys, [.., rows].
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x):
            return x.to(dtype) @ self.projection[heads].to(dtype).mT

    def extra_repr(self) -> str:
        """Return the sizes, the seed and whether the projection is learned, for `repr`."""
        learned = ", learned=True" if self.learned else ""
        return f"{super().extra_repr()}, seed={self.seed}{learned}"


def versions(buffers: Iterable[Tensor]) -> list[int]:
    """Return the number of in-place writes to each buffer, which a redraw increases."""
    return [version_of(x) for x in buffers]


def check_draw(buffers: Iterable[Tensor], expected_versions: list[int]) -> None:
    """Check that a backward pass that computes features again has the buffers of its forward pass.

    Args:
        buffers: buffers of the feature map at the backward pass.
        expected_versions: `versions` of the buffers at the forward pass.

    Raises:
        RuntimeError: buffers that were written to between the two passes.
    """
    if versions(buffers) != expected_versions:
        raise RuntimeError(
            "the random features were redrawn between a forward and its backward pass, which computes them again: "
            "redraw after the backward pass."
        )
