"""Random features: their orthogonal draws, a function of a seed, and maps that are made of one."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from performer_string.feature_maps.base import ALL, FeatureMap, Heads
from performer_string.utils._compat import version_of
from performer_string.utils.dtype import full_precision
from performer_string.utils.seeds import derive_seed


def orthogonal_projection(num_heads: int, rows: int, dim: int, seed: int) -> Tensor:
    """Rows w ~ N(0, I_d), orthogonal in blocks of d: [H, rows, d], float32.

    Haar-distributed orthogonal blocks with chi-distributed norms (arXiv:2009.14794 section 2.4), one draw for each
    head. The columns of QR's Q are multiplied by sign(diag R): LAPACK's sign convention is not Haar, and without this
    the estimate is biased. Drawn on the CPU in float64, hence the same on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = math.ceil(rows / dim)

    def gaussian(*shape: int) -> Tensor:  # the same on every device
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    gauss = gaussian(num_heads, blocks, dim, dim)
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    norms = gaussian(num_heads, blocks * dim, dim).norm(dim=-1)
    return (q.flatten(1, 2) * norms[..., None])[:, :rows].float()  # [H, blocks d, d] -> [H, rows, d]


class RandomFeatures(FeatureMap):
    """A feature map with a draw.

    Args:
        head_dim: d.
        num_heads: H; each head has a draw of its own.
        num_features: m, the width of phi.
        seed: of the draw.
        learned: the projection is a parameter that starts as the draw. What it learns is no longer isotropic, so that
            attention is translation invariant in expectation at the start only.

    The projection is a buffer unless it is learned, saved with a checkpoint either way. `redraw(step)` replaces it by
    the draw of (seed, step), so that every rank and every resumed run draws the same.
    """

    projection: Tensor

    def __init__(self, head_dim: int, num_heads: int, num_features: int = 256, seed: int = 0, *, learned: bool = False):
        super().__init__(head_dim, num_heads, num_features)
        self.seed, self.learned = seed, learned
        drawn = self.draw(0)
        if learned:
            self.projection = nn.Parameter(drawn)
        else:
            self.register_buffer("projection", drawn)

    def draws(self) -> int:
        """How many projections the features are made of."""
        return self.num_features

    def draw(self, step: int) -> Tensor:
        """The projections of (seed, step), [H, draws, d]."""
        return orthogonal_projection(self.num_heads, self.draws(), self.head_dim, derive_seed(self.seed, step))

    @torch.no_grad()
    def redraw(self, step: int) -> None:
        """The projections of (seed, step), in place.

        Raises:
            ValueError: they are learned.
        """
        if self.learned:
            raise ValueError("learned projections are not redrawn: leave out redraw_every, or the option learned.")
        self.projection.copy_(self.draw(step))

    def exact_projection(self) -> Tensor:
        """W in float32 or better, also where the module is of a smaller type: [H, draws, d]."""
        return full_precision(self.projection)

    def project(self, x: Tensor, heads: Heads = ALL) -> Tensor:
        """W x in float32 or better: [.., H', N, d] of these heads, or [.., d] of one, to [.., draws]."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return x.to(dtype) @ self.projection[heads].to(dtype).mT

    def extra_repr(self) -> str:
        learned = ", learned=True" if self.learned else ""
        return f"{super().extra_repr()}, seed={self.seed}{learned}"


def versions(fixed: Iterable[Tensor]) -> list[int]:
    """Of buffers; a new draw is another version."""
    return [version_of(x) for x in fixed]


def check_draw(fixed: Iterable[Tensor], drawn: list[int]) -> None:
    """An error where a backward pass would compute features again that are others than those of its forward pass."""
    if versions(fixed) != drawn:
        raise RuntimeError(
            "the random features were redrawn between a forward and its backward pass, which computes them again: "
            "redraw after the backward pass."
        )
