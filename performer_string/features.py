"""Feature maps: phi(q)^T phi(k) estimates a kernel of q and k, so that attention is linear in the number of tokens.

All maps here are isotropic: their projections are drawn from a rotation-invariant law, so that in expectation they
see only inner products and norms, and a rotation of queries and keys keeps its translation invariance.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from performer_string.choices import construct, lookup


def derive_seed(*parts: int | str) -> int:
    """A seed of 63 bits for this tuple of numbers and words: the same everywhere, unrelated for different tuples."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def orthogonal_projection(num_heads: int, rows: int, dim: int, seed: int) -> Tensor:
    """Rows w ~ N(0, I_d), orthogonal in blocks of d: [H, rows, d], float32.

    Haar-distributed orthogonal blocks with chi-distributed norms (arXiv:2009.14794 section 2.4), one draw for each
    head. The columns of QR's Q are multiplied by sign(diag R): LAPACK's sign convention is not Haar, and without this
    the estimate is biased. Drawn on the CPU in float64, hence the same on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = math.ceil(rows / dim)
    gauss = torch.randn(num_heads, blocks, dim, dim, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    norms = torch.randn(num_heads, blocks * dim, dim, generator=generator, dtype=torch.float64).norm(dim=-1)
    return (q.flatten(1, 2) * norms[..., None])[:, :rows].float()  # [H, blocks d, d] -> [H, rows, d]


@dataclass(frozen=True)
class FeatureForm:
    """What a fused kernel has to know of a feature map, in place of the map itself.

    Attributes:
        kind: `exponential`, phi_f(x) = exp(w_f x - square |x|^2), or `power`, phi_f(x) = relu(w_f x)^order. A common
            factor of all features is left out: it cancels in attention.
        weight: W, [H, rows, d], in float32 or better, with the scale of the logits in it.
        mirrored: the features are those of W and of -W, 2 rows in all.
        square: of the exponential.
        order: of the power.
    """

    kind: Literal["exponential", "power"]
    weight: Tensor
    mirrored: bool = False
    square: float = 0.0
    order: int = 1


class FeatureMap(nn.Module):
    """A random feature map with its draw.

    Args:
        head_dim: d.
        num_heads: H; each head has a draw of its own.
        num_features: m, the width of phi.
        seed: of the draw.

    The projection is a buffer, saved with a checkpoint. `redraw(step)` replaces it by the draw of (seed, step), so
    that every rank and every resumed run draws the same.
    """

    projection: Tensor

    def __init__(self, head_dim: int, num_heads: int, num_features: int = 256, seed: int = 0):
        super().__init__()
        for name, value in (("head_dim", head_dim), ("num_heads", num_heads), ("num_features", num_features)):
            if value < 1:
                raise ValueError(f"{name} has to be positive, not {value}.")
        self.head_dim, self.num_heads, self.num_features, self.seed = head_dim, num_heads, num_features, seed
        self.register_buffer("projection", torch.empty(num_heads, self.draws(), head_dim))
        self.redraw(0)

    def draws(self) -> int:
        """How many projections the features are made of."""
        return self.num_features

    @torch.no_grad()
    def redraw(self, step: int) -> None:
        """The projections of (seed, step)."""
        drawn = orthogonal_projection(self.num_heads, self.draws(), self.head_dim, derive_seed(self.seed, step))
        self.projection.copy_(drawn)

    def project(self, x: Tensor) -> Tensor:
        """W x in float32 or better: [B, H, N, d] -> [B, H, N, draws]."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return x.to(dtype) @ self.projection.to(dtype).mT

    def queries(self, q: Tensor) -> Tensor:
        """phi(q), [B, H, N, m]: the definition, which may overflow where `pair` does not."""
        raise NotImplementedError

    def keys(self, k: Tensor) -> Tensor:
        """phi(k), [B, H, N, m]."""
        return self.queries(k)

    def pair(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(phi(q), phi(k)) up to a factor for each query and one for each head: what attention uses.

        Those factors cancel in sum_j phi(q)^T phi(k_j) v_j / sum_j phi(q)^T phi(k_j), and choosing them well keeps
        the features in range at any norm. Keys outside `key_mask` [B, N] have zero features and no say in the
        factors.
        """
        raise NotImplementedError

    def form(self) -> FeatureForm | None:
        """The map as fused kernels know it; None for a map that is neither an exponential nor a power."""
        return None

    def extra_repr(self) -> str:
        return (
            f"head_dim={self.head_dim}, num_heads={self.num_heads}, num_features={self.num_features}, seed={self.seed}"
        )


class PositiveFeatures(FeatureMap):
    """FAVOR+: phi(x) = m^-1/2 exp(W x' - |x'|^2 / 2) with x' = sqrt(scale) x; E phi(q)^T phi(k) = exp(scale q^T k).

    Source: Choromanski et al., arXiv:2009.14794, Lemma 1.

    Args:
        scale: of the logits, d^-1/2 unless given.
    """

    def __init__(
        self, head_dim: int, num_heads: int, num_features: int = 256, seed: int = 0, *, scale: float | None = None
    ):
        super().__init__(head_dim, num_heads, num_features, seed)
        self.scale = head_dim**-0.5 if scale is None else scale
        if self.scale <= 0:
            raise ValueError(f"the scale of the logits has to be positive, not {scale}.")

    def exponents(self, x: Tensor) -> Tensor:
        """log(m^1/2 phi(x)), [B, H, N, m]."""
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.scale**0.5
        return self.project(x) - x.square().sum(-1, keepdim=True) / 2

    def queries(self, q: Tensor) -> Tensor:
        return self.exponents(q).exp() * self.num_features**-0.5

    def pair(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # A maximum for each feature over the tokens leaves the keys and enters the queries, then a maximum for each
        # query leaves those. Both cancel exactly, so that no epsilon is needed: the best feature of a query has value
        # 1, and so has its largest key, hence the denominator is at least 1. (A maximum for each key reweights keys.)
        log_q, log_k = self.exponents(q), self.exponents(k)
        if key_mask is not None:
            log_k = log_k.masked_fill(~key_mask[:, None, :, None], -math.inf)
        with torch.no_grad():
            largest = log_k.amax(dim=-2, keepdim=True)  # [B, H, 1, m]
            largest = largest.masked_fill(largest == -math.inf, 0.0)  # where every key is masked
        log_q = log_q + largest
        return (log_q - log_q.detach().amax(dim=-1, keepdim=True)).exp(), (log_k - largest).exp()

    def form(self) -> FeatureForm | None:
        return FeatureForm("exponential", self.projection * self.scale**0.5, square=self.scale / 2)


class HyperbolicFeatures(PositiveFeatures):
    """FAVOR+ in hyperbolic pairs: phi(x) = m^-1/2 [exp(W x'), exp(-W x')] exp(-|x'|^2 / 2), with m / 2 draws.

    Lower variance than m independent draws, at half the projections (arXiv:2009.14794, Lemma 1, the cosh form).
    """

    def draws(self) -> int:
        if self.num_features % 2:
            raise ValueError(f"favor+hyperbolic: num_features has to be even (pairs), not {self.num_features}.")
        return self.num_features // 2

    def exponents(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.scale**0.5
        projected = self.project(x)
        return torch.cat([projected, -projected], dim=-1) - x.square().sum(-1, keepdim=True) / 2

    def form(self) -> FeatureForm | None:
        return FeatureForm("exponential", self.projection * self.scale**0.5, mirrored=True, square=self.scale / 2)


class _RectifiedPower(torch.autograd.Function):
    """relu(x)^p by multiplications, keeping one tensor for the backward pass instead of one for each factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: int) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        ctx.order = order
        return integer_power(positive, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (positive,) = ctx.saved_tensors
        if ctx.order == 1:
            return grad * (positive > 0), None
        return grad * integer_power(positive, ctx.order - 1) * ctx.order, None


def integer_power(x: Tensor, order: int) -> Tensor:
    """x^order by repeated squaring; on a CPU about ten times faster than `pow` beyond the cube."""
    power, square = None, x
    while order:
        if order & 1:
            power = square if power is None else power * square
        order >>= 1
        if order:
            square = square * square
    assert power is not None
    return power


class ArcCosineFeatures(FeatureMap):
    """phi(x) = sqrt(2/m) relu(W x)^p; E phi(q)^T phi(k) is the arc-cosine kernel of order p (Cho and Saul, 2009):

        k_p(q, k) = |q|^p |k|^p J_p(angle) / pi,   J_1 = sin t + (pi - t) cos t, ...

    Sharper as p grows, of bounded variance, and homogeneous: a key of small norm gets almost no weight, where
    softmax gives it exp(0). p = 1 is the ReLU kernel of arXiv:2009.14794 (Performer-ReLU), without its epsilon.

    Args:
        order: p, a positive integer.
    """

    def __init__(self, head_dim: int, num_heads: int, num_features: int = 256, seed: int = 0, *, order: int = 1):
        super().__init__(head_dim, num_heads, num_features, seed)
        if order < 1 or order != int(order):
            raise ValueError(f"relu: the order has to be a positive integer, not {order}.")
        self.order = int(order)

    def queries(self, q: Tensor) -> Tensor:
        features: Tensor = _RectifiedPower.apply(self.project(q), self.order)
        return features * (2 / self.num_features) ** 0.5

    def pair(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # Scale before the power: each query to unit norm, all keys of a head by their largest norm. phi is
        # homogeneous, so that both cancel.
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(dtype), k.to(dtype)
        if key_mask is not None:
            k = k.masked_fill(~key_mask[:, None, :, None], 0.0)
        with torch.no_grad():
            tiny = torch.finfo(dtype).tiny
            q_scale = q.norm(dim=-1, keepdim=True).clamp_min(tiny)  # [B, H, N, 1]
            k_scale = k.norm(dim=-1, keepdim=True).amax(dim=-2, keepdim=True).clamp_min(tiny)  # [B, H, 1, 1]
        return self.queries(q / q_scale), self.queries(k / k_scale)

    def form(self) -> FeatureForm | None:
        longest = self.projection.detach().norm(dim=-1).amax(-1)  # keeps products of features of order 16 in range
        return FeatureForm("power", self.projection / longest.sqrt()[:, None, None], order=self.order)


FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "favor+": PositiveFeatures,
    "favor+hyperbolic": HyperbolicFeatures,
    "relu": ArcCosineFeatures,
}


def build_feature_map(
    name: str, *, head_dim: int, num_heads: int, num_features: int = 256, seed: int = 0, **options: Any
) -> FeatureMap:
    """A feature map by its name in `FEATURE_MAPS`; `options` are the map's own (`scale`, `order`).

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    given = {"head_dim": head_dim, "num_heads": num_heads, "num_features": num_features, "seed": seed}
    return construct("feature map", name, lookup("feature map", name, FEATURE_MAPS), options, **given)
