"""Polynomial kernels of degree 2, whose features are finite in number and exact."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.feature_maps.base import ALL, FeatureMap, Heads, inner_products
from performer_string.utils.dtype import full_precision
from performer_string.utils.validation import check_positive


class PolynomialFeatures(FeatureMap):
    """phi(q)^T phi(k) = (s q.k)^2, or 1 + s q.k + (s q.k)^2 / 2 with the lower orders; no draw, no error.

    Features: the squares x_i^2 and, for i < j, sqrt(2) x_i x_j, d (d + 1) / 2 of them, in the order of j - i around a
    circle; with the lower orders also 1 and x before them, 1 + d more. Since the kernel sees inner products only,
    linear attention under a commuting encoding is exactly translation invariant. Both kernels are positive, the
    second never below 1/2; but they are not monotone: q.k and -q.k weigh the same in the first. A query nearly
    orthogonal to every key loses digits in it, since its features cancel.

    Source: Arora et al., arXiv:2402.18668 (Based), the Taylor polynomial, there with all d^2 products; Kacham et al.,
    arXiv:2310.01655 (PolySketchFormer), even powers alone.

    Args:
        scale: s, d^-1/2 unless given; without the lower orders it cancels in attention.
        lower: with the lower orders, the Taylor polynomial of exp(s q.k).
    """

    scale: float

    def __init__(self, head_dim: int, num_heads: int, *, scale: float | None = None, lower: bool = False):
        super().__init__(head_dim, num_heads, head_dim * (head_dim + 1) // 2 + lower * (1 + head_dim))
        self.scale = head_dim**-0.5 if scale is None else scale
        check_positive("the scale of the logits", self.scale)
        self.lower, self.degree = lower, None if lower else 2

    def expand(self, x: Tensor, divisor: Tensor) -> Tensor:
        """phi(x) / divisor^2 for positive divisors [.., 1], each factor divided before the product: no overflow."""
        y = x / divisor * self.scale**0.5
        if not self.lower:
            return torch.cat(self.products(y), dim=-1)
        one = divisor.square().reciprocal().expand(*x.shape[:-1], 1)
        return torch.cat([one, y / divisor, *self.products(y * 0.5**0.25)], dim=-1)

    def products(self, y: Tensor) -> list[Tensor]:
        """y_i^2 and sqrt(2) y_i y_(i+s) around the circle for s = 1, 2, .., d / 2, of which each pair once.

        Shifts and not indices, whose gradient is a slow scatter.
        """
        half, odd = divmod(self.head_dim, 2)
        weighed = y * 2**0.5
        around = [weighed * y.roll(-shift, -1) for shift in range(1, half + odd)]
        opposite = [] if odd else [weighed[..., :half] * y[..., half:]]
        return [y.square(), *around, *opposite]

    def queries(self, q: Tensor) -> Tensor:
        q = full_precision(q)
        return self.expand(q, q.new_ones(1))

    # Each query is divided by its norm, all keys of a head by their largest one. With the lower orders the constant is
    # divided as well, so that small norms stay as they are.

    def least(self, dtype: torch.dtype) -> float:
        return self.scale**-0.5 if self.lower else torch.finfo(dtype).tiny

    @torch.no_grad()
    def key_scale(self, k: Tensor, hidden: Tensor | None = None) -> Tensor:
        norms = k.norm(dim=-1, keepdim=True, dtype=torch.promote_types(k.dtype, torch.float32))
        if hidden is not None:
            norms = norms.masked_fill(hidden, 0.0)
        return norms.amax(dim=-2, keepdim=True).clamp_min(self.least(norms.dtype))  # [B, H, 1, 1]

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        q = q.to(scale.dtype)
        return self.expand(q, q.detach().norm(dim=-1, keepdim=True).clamp_min(self.least(q.dtype)))

    def scaled_keys(self, k: Tensor, scale: Tensor, hidden: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        k = k.to(scale.dtype)
        if hidden is None:
            return self.expand(k, scale)
        features = self.expand(k.masked_fill(hidden, 0.0), scale)
        return features.masked_fill(hidden, 0.0)  # a zero key has the constant feature

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        logits = inner_products(q, k) * self.scale
        return ((1 + logits + logits.square() / 2) if self.lower else logits.square()).log()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale}, lower={self.lower}"
