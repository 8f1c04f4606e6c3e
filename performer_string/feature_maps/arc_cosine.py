"""Random features of the arc-cosine kernels: rectified powers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from performer_string.feature_maps.base import ALL, Heads, inner_products, largest_key_norm
from performer_string.feature_maps.random import RandomFeatures
from performer_string.ops.forms import FeatureForm
from performer_string.utils._compat import needs_plain_operations
from performer_string.utils.numerics import integer_power, least_norm

_angular_tables: dict[int, list[float]] = {}
KNOTS = 2048  # intervals in the table of the angular integral: a relative error of 3e-6 at order 16
# Orders tested at widths up to 256. There, orders up to 24 are in range where queries and keys are along a row of W.
MAX_ORDER = 32


class _RectifiedPower(torch.autograd.Function):
    """relu(x)^p by multiplications, which saves one tensor for the backward pass instead of one for each factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: int) -> Tensor:
        ctx.order = order
        # The input is saved, since relu(x) is computed here and has no graph for a second derivative.
        ctx.save_for_backward(x)
        return integer_power(x.relu(), order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if ctx.order == 1:
            return grad * (x > 0), None
        return grad * integer_power(x.relu(), ctx.order - 1) * ctx.order, None


def angular_table(order: int) -> Tensor:
    """Return I_p(t)^(1 / (2 p + 1)) at t = 0, pi / KNOTS, .., pi, with I_p the angular part of the kernel:

        I_p(t) = int cos(u)^p cos(u - t)^p du over where both are positive = int_0^(pi - t) ((cos s + cos t) / 2)^p ds.

    I_p vanishes as (pi - t)^(2 p + 1), so that its root is close to linear there and can be interpolated.

    Args:
        order: order p of the kernel.

    Returns:
        Table, [KNOTS + 1], in float64 on the CPU.
    """
    options: Any = {"dtype": torch.float64, "device": "cpu"}  # whatever torch's default device is
    if order in _angular_tables:
        return torch.tensor(_angular_tables[order], **options)
    rest = math.pi - torch.linspace(0, math.pi, KNOTS + 1, **options)[:, None]  # pi - t, [knots, 1]
    nodes = (torch.arange(1024, **options) + 0.5) / 1024
    s = rest * nodes
    integrand = (((rest + s) / 2).sin() * ((rest - s) / 2).sin()) ** order  # (cos s + cos t) / 2 without cancellation
    table = (integrand.mean(-1) * rest[:, 0]).clamp_min(0) ** (1 / (2 * order + 1))
    if type(table) is Tensor:  # not a fake one, which has no values and may not outlast its mode
        _angular_tables[order] = table.tolist()
    return table


class ArcCosineFeatures(RandomFeatures):
    """Rectified powers, phi(x) = sqrt(2 / m) relu(W x)^p. E phi(q)^T phi(k) is the arc-cosine kernel of order p:

        k_p(q, k) = |q|^p |k|^p J_p(angle) / pi,   J_1(t) = sin t + (pi - t) cos t, ...

    Attention is sharper as p grows, and of bounded variance. It is homogeneous: a key of small norm gets almost no
    weight, where softmax gives it exp(0). p = 1 is the ReLU kernel of arXiv:2009.14794 (Performer-ReLU), without its
    epsilon.

    Stabilisation: before the power each query is divided by its norm, and all keys of a head by their largest norm.
    Both are divided by the root of the longest row's norm of W. So products of features stay in range up to high
    orders. phi is homogeneous, so that all of it cancels.

    Source: Cho and Saul, 2009.

    Args:
        order: exponent p, from 1 to 32. The other arguments are those of `RandomFeatures`.

    Raises:
        ValueError: an order out of range.
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
        if not 1 <= order <= MAX_ORDER:
            raise ValueError(
                f"arc-cosine: the order must be a positive integer of at most {MAX_ORDER}, beyond which features "
                f"leave the range of float32, not {order}."
            )
        self.order = order

    @property
    def degree(self) -> int:  # type: ignore[override]
        """The order p."""
        return self.order

    def queries(self, q: Tensor) -> Tensor:
        """Return phi(q) by its definition for queries [B, H, N, d], [B, H, N, m]."""
        return self.power_features(q, ALL)

    def power_features(self, x: Tensor, heads: Heads) -> Tensor:
        """Return phi(x) for x [.., d] of these heads, [.., m]."""
        x = self.project(x, heads)
        features: Tensor = (
            integer_power(x.relu(), self.order) if needs_plain_operations() else _RectifiedPower.apply(x, self.order)
        )
        return features * (2 / self.num_features) ** 0.5

    def row_scale(self, heads: Heads = ALL) -> Tensor:
        """Return the root of the norm of the longest row of W, [H', 1, 1], or [] of one head."""
        longest = self.exact_projection().detach().norm(dim=-1).amax(-1).sqrt()[heads]
        return longest[:, None, None] if longest.ndim else longest

    @torch.no_grad()
    def key_scale(self, k: Tensor, masked: Tensor | None = None) -> Tensor:
        """Return the largest norm of the keys of each head, [B, H, 1, 1]."""
        largest = largest_key_norm(k, masked)
        return largest.clamp_min(least_norm(largest.dtype))

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        """Return features of queries [.., d], each over its norm: [.., m]."""
        q = q.to(scale.dtype)
        norms = q.detach().norm(dim=-1, keepdim=True).clamp_min(least_norm(q.dtype))
        return self.power_features(q / (norms * self.row_scale(heads)), heads)

    def scaled_keys(self, k: Tensor, scale: Tensor, masked: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        """Return features of keys [.., d] over `scale`, zero where masked: [.., m]."""
        k = k.to(scale.dtype) / (scale * self.row_scale(heads))
        return self.power_features(k if masked is None else k.masked_fill(masked, 0.0), heads)

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the logarithm of the arc-cosine kernel, [B, H, Nq, Nk].

        With p = order it is p (log |q| + log |k|) + log(2^p p! / pi) + log I_p(angle), I_p interpolated in a table.
        """
        p, dots = self.order, inner_products(q, k)  # [B, H, Nq, Nk]
        tiny = torch.finfo(dots.dtype).tiny
        q_norm = q.to(dots.dtype).norm(dim=-1)[..., :, None]
        k_norm = k.to(dots.dtype).norm(dim=-1)[..., None, :]
        position = (dots / (q_norm * k_norm).clamp_min(tiny)).clamp(-1, 1).acos() * (KNOTS / math.pi)
        knot = position.long().clamp(max=KNOTS - 1)
        table = angular_table(p).to(dots)
        root = torch.lerp(table[knot], table[knot + 1], position - knot)
        constant = p * math.log(2) + math.lgamma(p + 1) - math.log(math.pi)  # the radial integral
        return constant + p * (q_norm.log() + k_norm.log()) + (2 * p + 1) * root.log()

    def form(self) -> FeatureForm | None:
        """Return the map as fused kernels know it: a power."""
        return FeatureForm("power", self.exact_projection() / self.row_scale(), order=self.order)
