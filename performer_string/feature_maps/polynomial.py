"""Polynomial kernels of degree 2, with finitely many exact features."""

from __future__ import annotations

import torch
from torch import Tensor

from performer_string.feature_maps.base import ALL, FeatureMap, Heads, inner_products, largest_key_norm
from performer_string.ops.forms import PolynomialKernel
from performer_string.utils.dtype import full_precision
from performer_string.utils.validation import check_positive


class PolynomialFeatures(FeatureMap):
    """Exact features of phi(q)^T phi(k) = (s q^T k)^2, or 1 + s q^T k + (s q^T k)^2 / 2 with the lower orders.

    The d (d + 1) / 2 features are the squares x_i^2, and sqrt(2) x_i x_j for i < j. They are in the order of j - i
    around a circle. With the lower orders there are also 1 and x before them, 1 + d more.

    The kernel depends on inner products only. So linear attention under a separable encoding is exactly translation
    invariant. Both kernels are positive, and the second is never below 1/2. They are not monotone: q^T k and -q^T k
    have the same weight in the first. A query that is nearly orthogonal to every key loses digits in it, since its
    features cancel.

    Stabilisation: each query is divided by its norm, and all keys of a head by their largest norm. With the lower
    orders the constant is divided as well, and norms below s^-1/2 are not scaled up.

    Source: Arora et al., arXiv:2402.18668 (Based), the Taylor polynomial, there with all d^2 products; Kacham et al.,
    arXiv:2310.01655 (PolySketchFormer), even powers alone.

    Args:
        head_dim: width d of a head.
        num_heads: number H of heads.
        scale: scale s of the logits, d^-1/2 by default; without the lower orders it cancels in attention.
        lower: whether to include the lower orders, for the Taylor polynomial of exp(s q^T k).

    Raises:
        ValueError: a scale that is not positive.
    """

    scale: float

    def __init__(self, head_dim: int, num_heads: int, *, scale: float | None = None, lower: bool = False):
        super().__init__(head_dim, num_heads, head_dim * (head_dim + 1) // 2 + lower * (1 + head_dim))
        self.scale = head_dim**-0.5 if scale is None else scale
        check_positive("the scale of the logits", self.scale)
        self.lower, self.degree = lower, None if lower else 2

    def expand(self, x: Tensor, divisor: Tensor) -> Tensor:
        """Return phi(x) / divisor^2, dividing each factor before the product so that nothing overflows.

        Args:
            x: queries or keys, [.., d].
            divisor: divisors, positive, [.., 1].

        Returns:
            Features, [.., m].
        """
        y = x / divisor * self.scale**0.5
        if not self.lower:
            return torch.cat(self.products(y), dim=-1)
        one = divisor.square().reciprocal().expand(*x.shape[:-1], 1)
        return torch.cat([one, y / divisor, *self.products(y * 0.5**0.25)], dim=-1)

    def products(self, y: Tensor) -> list[Tensor]:
        """Return y_i^2 and sqrt(2) y_i y_(i+t) around the circle for t = 1, 2, .., d / 2, each pair once.

        They are computed by shifts and not by indices, whose gradient is a slow scatter.
        """
        half, odd = divmod(self.head_dim, 2)
        scaled = y * 2**0.5
        around = [scaled * y.roll(-shift, -1) for shift in range(1, half + odd)]
        opposite = [] if odd else [scaled[..., :half] * y[..., half:]]
        return [y.square(), *around, *opposite]

    def queries(self, q: Tensor) -> Tensor:
        """Return phi(q) by its definition for queries [..., d], [..., m]."""
        q = full_precision(q)
        return self.expand(q, q.new_ones(1))

    def smallest_divisor(self, dtype: torch.dtype) -> float:
        """Return the smallest norm that a query or key is divided by."""
        return self.scale**-0.5 if self.lower else torch.finfo(dtype).tiny

    @torch.no_grad()
    def key_scale(self, k: Tensor, masked: Tensor | None = None) -> Tensor:
        """Return the largest norm of the keys of each head, [B, H, 1, 1]."""
        largest = largest_key_norm(k, masked)
        return largest.clamp_min(self.smallest_divisor(largest.dtype))

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        """Return features of queries [.., d], each over its norm: [.., m]."""
        q = q.to(scale.dtype)
        return self.expand(q, q.detach().norm(dim=-1, keepdim=True).clamp_min(self.smallest_divisor(q.dtype)))

    def scaled_keys(self, k: Tensor, scale: Tensor, masked: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        """Return features of keys [.., d] over `scale`, zero where masked: [.., m]."""
        k = k.to(scale.dtype)
        if masked is None:
            return self.expand(k, scale)
        features = self.expand(k.masked_fill(masked, 0.0), scale)
        return features.masked_fill(masked, 0.0)  # a zero key has the constant feature

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the logarithm of the kernel, [B, H, Nq, Nk]."""
        logits = inner_products(q, k) * self.scale
        return ((1 + logits + logits.square() / 2) if self.lower else logits.square()).log()

    def polynomial_kernel(self) -> PolynomialKernel:
        """Return the kernel, for attention without these features."""
        return PolynomialKernel(self.scale, self.lower)

    def extra_repr(self) -> str:
        """Return the sizes and options, for `repr`."""
        return f"{super().extra_repr()}, scale={self.scale}, lower={self.lower}"
