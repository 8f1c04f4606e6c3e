"""Rectified powers: random features of the arc-cosine kernels."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from performer_string.feature_maps.base import ALL, Heads, inner_products
from performer_string.feature_maps.random import RandomFeatures
from performer_string.ops.forms import FeatureForm
from performer_string.utils._compat import needs_plain_operations
from performer_string.utils.numerics import integer_power, least_norm


class _RectifiedPower(torch.autograd.Function):
    """relu(x)^p by multiplications, keeping one tensor for the backward pass instead of one for each factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: int) -> Tensor:
        ctx.order = order
        ctx.save_for_backward(x)  # and not relu(x): an input has derivatives of its own, which a second one needs
        return integer_power(x.relu(), order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if ctx.order == 1:
            return grad * (x > 0), None
        return grad * integer_power(x.relu(), ctx.order - 1) * ctx.order, None


KNOTS = 2048  # of the table of the angular integral: 3e-6 relative at order 16
LARGEST = 32  # order: tried at widths up to 256 (there up to 24 where queries and keys lie along a row of W)


@functools.cache
def angular_table(order: int) -> Tensor:
    """I_p(t)^(1 / (2 p + 1)) at t = 0, pi / KNOTS, .., pi, in float64, with the angular part of the kernel

        I_p(t) = int cos(u)^p cos(u - t)^p du over where both are positive = int_0^(pi - t) ((cos s + cos t) / 2)^p ds.

    I_p vanishes as (pi - t)^(2 p + 1), so that its root is close to linear there and a table of it can be interpolated.
    """
    on_cpu: Any = {"dtype": torch.float64, "device": "cpu"}  # whatever the default device is when it is first asked for
    rest = math.pi - torch.linspace(0, math.pi, KNOTS + 1, **on_cpu)[:, None]  # pi - t, [knots, 1]
    nodes = (torch.arange(1024, **on_cpu) + 0.5) / 1024
    s = rest * nodes
    integrand = (((rest + s) / 2).sin() * ((rest - s) / 2).sin()) ** order  # (cos s + cos t) / 2 without cancellation
    return (integrand.mean(-1) * rest[:, 0]).clamp_min(0) ** (1 / (2 * order + 1))


class ArcCosineFeatures(RandomFeatures):
    """phi(x) = sqrt(2/m) relu(W x)^p; E phi(q)^T phi(k) is the arc-cosine kernel of order p (Cho and Saul, 2009):

        k_p(q, k) = |q|^p |k|^p J_p(angle) / pi,   J_1 = sin t + (pi - t) cos t, ...

    Sharper as p grows, of bounded variance, and homogeneous: a key of small norm gets almost no weight, where
    softmax gives it exp(0). p = 1 is the ReLU kernel of arXiv:2009.14794 (Performer-ReLU), without its epsilon.

    Args:
        order: p, from 1 to 32.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_features: int = 256,
        seed: int = 0,
        *,
        learned: bool = False,
        order: int = 1,
    ):
        super().__init__(head_dim, num_heads, num_features, seed, learned=learned)
        if not 1 <= order <= LARGEST:
            raise ValueError(
                f"arc-cosine: the order has to be a positive integer of at most {LARGEST}, beyond which features leave "
                f"the range of float32, not {order}."
            )
        self.order = order

    @property
    def degree(self) -> int:  # type: ignore[override]
        return self.order

    def queries(self, q: Tensor) -> Tensor:
        return self.powers(q, ALL)

    def powers(self, x: Tensor, heads: Heads) -> Tensor:
        x = self.project(x, heads)
        features: Tensor = (
            integer_power(x.relu(), self.order) if needs_plain_operations() else _RectifiedPower.apply(x, self.order)
        )
        return features * (2 / self.num_features) ** 0.5

    # Scale before the power: each query to unit norm, all keys of a head by their largest norm, and both by the root of
    # the longest row of W, so that products of features stay in range up to high orders. phi is homogeneous, so that
    # all of it cancels.

    def reach(self, heads: Heads = ALL) -> Tensor:
        """The root of the norm of the longest row of W, [H', 1, 1], or [] of one head."""
        longest = self.exact_projection().detach().norm(dim=-1).amax(-1).sqrt()[heads]
        return longest[:, None, None] if longest.ndim else longest

    @torch.no_grad()
    def key_scale(self, k: Tensor, hidden: Tensor | None = None) -> Tensor:
        norms = k.norm(dim=-1, keepdim=True, dtype=torch.promote_types(k.dtype, torch.float32))
        if hidden is not None:
            norms = norms.masked_fill(hidden, 0.0)
        return norms.amax(dim=-2, keepdim=True).clamp_min(least_norm(norms.dtype))  # [B, H, 1, 1]

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        q = q.to(scale.dtype)
        norms = q.detach().norm(dim=-1, keepdim=True).clamp_min(least_norm(q.dtype))
        return self.powers(q / (norms * self.reach(heads)), heads)

    def scaled_keys(self, k: Tensor, scale: Tensor, hidden: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        k = k.to(scale.dtype) / (scale * self.reach(heads))
        return self.powers(k if hidden is None else k.masked_fill(hidden, 0.0), heads)

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        p, dots = self.order, inner_products(q, k)  # [B, H, Nq, Nk]
        tiny = torch.finfo(dots.dtype).tiny
        q_norm = q.to(dots.dtype).norm(dim=-1)[..., :, None]
        k_norm = k.to(dots.dtype).norm(dim=-1)[..., None, :]
        place = (dots / (q_norm * k_norm).clamp_min(tiny)).clamp(-1, 1).acos() * (KNOTS / math.pi)
        knot = place.long().clamp(max=KNOTS - 1)
        table = angular_table(p).to(dots)
        root = torch.lerp(table[knot], table[knot + 1], place - knot)
        constant = p * math.log(2) + math.lgamma(p + 1) - math.log(math.pi)  # the radial integral
        return constant + p * (q_norm.log() + k_norm.log()) + (2 * p + 1) * root.log()

    def form(self) -> FeatureForm | None:
        return FeatureForm("power", self.exact_projection() / self.reach(), order=self.order)
