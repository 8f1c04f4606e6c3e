"""Self-attention as a layer: projections, folded basis, rotation, one of three ways to attend, and what goes with it:
a locality, which attenuates values by distance, and a structure on the values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string import naive
from performer_string.attention import linear_attention, rotate_pair, softmax_attention
from performer_string.choices import lookup
from performer_string.features import build_feature_map, derive_seed
from performer_string.locality import Locality
from performer_string.rotation import Rotation
from performer_string.values import ValueMap


@dataclass(frozen=True)
class Focus:
    """A locality with the places of the tokens that it is to see; its fields are arguments of attention."""

    locality: Locality
    positions: Tensor
    num_prefix: int = 0

    def matrix(self) -> Tensor:
        """lambda(p_i - p_j), [H, N, N]."""
        return self.locality.matrix(self.positions, self.num_prefix)


def arguments(focus: Focus | None) -> dict[str, Any]:
    return {} if focus is None else vars(focus)


class Attend(Protocol):
    """A way to attend: what the layer, the trainer's diagnostics and the evaluations ask of it.

    Attributes:
        homogeneous: no weight changes with a common factor of the queries and keys, so that a temperature has no
            effect.
    """

    homogeneous: bool

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor: ...

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None) -> Tensor:
        """The attention matrix that it implies, dense and before any locality, [B, H, N, N]: for study."""
        ...

    def redraw(self, step: int) -> None:
        """New random features, a function of (seed, step) alone; nothing where there are none."""
        ...


class SoftmaxAttention(nn.Module):
    """`softmax_attention` as a module."""

    homogeneous = False

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        return softmax_attention(q, k, v, rotation=rotation, key_mask=key_mask, **arguments(focus))

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None) -> Tensor:
        return naive.softmax_weights(*rotate_pair(q, k, rotation))

    def redraw(self, step: int) -> None:
        pass


class LinearAttention(nn.Module):
    """`linear_attention` with its feature map."""

    def __init__(self, head_dim: int, num_heads: int, feature_map: str, seed: int, **options: Any):
        super().__init__()
        self.phi = build_feature_map(feature_map, head_dim=head_dim, num_heads=num_heads, seed=seed, **options)
        self.homogeneous = self.phi.homogeneous

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        return linear_attention(q, k, v, self.phi, rotation=rotation, key_mask=key_mask, **arguments(focus))

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None) -> Tensor:
        return naive.linear_weights(*self.phi.pair(*rotate_pair(q, k, rotation)))

    def redraw(self, step: int) -> None:
        self.phi.redraw(step)


class PerformerPytorchAttention(nn.Module):
    """FastAttention of the package performer-pytorch, as it stands, behind our rotations: for comparison.

    Its epsilons (1e-4 in the softmax kernel, 1e-3 in the generalised one), its one draw for all heads and its
    stabilisers are its own. It knows no key mask and no locality.
    """

    def __init__(self, head_dim: int, num_heads: int, feature_map: str, seed: int, **options: Any):
        super().__init__()
        from performer_pytorch import FastAttention  # slow to import, and needed by this backend only

        known = {"favor+": {"num_features"}, "relu": {"num_features", "order"}}
        for option in set(options) - lookup("feature map of performer-pytorch", feature_map, known):
            raise ValueError(f"performer-pytorch with {feature_map!r} has no option {option!r}.")
        order = options.get("order", 1)
        self.seed, self.homogeneous = seed, feature_map == "relu"  # up to its epsilon
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, 0))
            self.fast = FastAttention(
                head_dim,
                nb_features=options.get("num_features", 256),
                generalized_attention=feature_map == "relu",
                kernel_fn=lambda x: x.relu() ** order,
            )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        if key_mask is not None:
            raise ValueError('attention "performer-pytorch" has no key mask; use "linear".')
        if focus is not None:
            raise ValueError('attention "performer-pytorch" has no locality; use "linear" or "softmax".')
        q, k = rotate_pair(q, k, rotation)
        return cast(Tensor, self.fast(q, k, v))

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None) -> Tensor:
        eye = torch.eye(k.shape[-2], device=k.device, dtype=k.dtype).expand(*k.shape[:2], -1, -1)
        return self(q, k, eye, rotation=rotation)  # the package shows no features, but A I = A

    def redraw(self, step: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, step))
            self.fast.redraw_projection_matrix(torch.device("cpu"))


ATTENTIONS: dict[str, type[nn.Module]] = {
    "linear": LinearAttention,
    "softmax": SoftmaxAttention,
    "performer-pytorch": PerformerPytorchAttention,
}


def build_attention(
    name: str, *, head_dim: int, num_heads: int, feature_map: str, seed: int, feature_options: Mapping[str, Any]
) -> nn.Module:
    """A way to attend by its name in `ATTENTIONS`. Softmax has no features: it leaves the last three unused."""
    kind = lookup("attention", name, ATTENTIONS)
    if kind is SoftmaxAttention:
        return SoftmaxAttention()
    return kind(head_dim, num_heads, feature_map, seed, **feature_options)


class SelfAttention(nn.Module):
    """Multi-head self-attention of tokens [B, N, D] under a rotation of queries and keys.

    A rotation's basis B is folded into the projections, W <- B^T W, once a call: d x d for each head, instead of a
    product for each token.

    Args:
        width: D.
        num_heads: H, a divisor of D.
        attend: how to attend, an `Attend`.
        qk_norm: normalise queries and keys to unit length, so that the logits are tau cos(q, k) with a learned
            temperature 0 < tau < max_temperature for each head. There is no learned scale for each channel, since
            that would not commute with the folded basis.
        max_temperature: the bound of tau, which starts at a quarter of it.
        log_scale: N_0, the number of tokens in training: logits are multiplied by log N / log N_0 for N keys, which
            keeps attention from spreading as they grow in number (Chiang and Cholak, arXiv:2202.12172; with a learned
            factor in place of 1 / log N_0, Nakanishi, arXiv:2501.19399). None for no such factor.
        locality: attenuates the values by distance.
        values: a structure on the values, around all else.

    Raises:
        ValueError: a width that the heads do not divide; a log_scale of less than 2 tokens, or with homogeneous
            features, which no factor of the logits reaches.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        attend: nn.Module,
        *,
        qk_norm: bool = False,
        max_temperature: float = 16.0,
        log_scale: int | None = None,
        locality: Locality | None = None,
        values: ValueMap | None = None,
    ):
        super().__init__()
        if num_heads < 1 or width % num_heads:
            raise ValueError(f"the width {width} is not divisible by {num_heads} heads.")
        self.num_heads, self.head_dim, self.max_temperature = num_heads, width // num_heads, max_temperature
        if log_scale is not None and log_scale < 2:
            raise ValueError(f"log_scale needs at least 2 tokens in training, for log N / log N_0, not {log_scale}.")
        if log_scale is not None and cast(Attend, attend).homogeneous:
            raise ValueError(
                "log_scale multiplies the logits, which has no effect with a homogeneous feature map (relu, or "
                "polynomial without lower): leave it off, or use softmax, favor+, favor+hyperbolic or polynomial with "
                "lower."
            )
        self.attend, self.locality, self.values, self.log_scale = attend, locality, values, log_scale
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        start = torch.full((num_heads,), 0.25).logit()
        self.temperature = nn.Parameter(start) if qk_norm else None

    def fold(self, basis: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weight [3D, D] and bias [3D] of the projections with B^T applied to the queries' and keys' rows."""
        weight, bias = self.qkv.weight, self.qkv.bias
        if basis is None:
            return weight, bias
        with torch.autocast(weight.device.type, enabled=False):
            rows = torch.cat([weight, bias[:, None]], dim=1).unflatten(0, (3, self.num_heads, self.head_dim))
            turned = basis.mT.to(rows.dtype) @ rows[:2]  # [2, H, d, D + 1]
            rows = torch.cat([turned, rows[2:]]).flatten(0, 2)  # [3 H d, D + 1]
        return rows[:, :-1], rows[:, -1]

    def log_growth(self, x: Tensor, key_mask: Tensor | None) -> float | Tensor:
        """log N / log N_0 for the N keys that take part, [B, 1, 1, 1] under a mask."""
        assert self.log_scale is not None
        if key_mask is None:
            return math.log(x.shape[1]) / math.log(self.log_scale)
        keys = key_mask.sum(-1)[:, None, None, None].to(torch.promote_types(x.dtype, torch.float32))
        return (keys.clamp(min=1).log() / math.log(self.log_scale)).to(x.dtype)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        key_mask: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        num_prefix: int = 0,
    ) -> Tensor:
        """Tokens to tokens, [B, N, D]; a locality and a structure on the values need the `positions` [N, C] too."""
        if positions is None and not (self.locality is None and self.values is None):
            raise ValueError("a layer with a locality or a structure on the values needs the positions of its tokens.")
        basis, rotation = rotation.factor()
        qkv = F.linear(x, *self.fold(basis))  # [B, N, 3D]
        qkv = qkv.unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)  # [3, B, H, N, d]
        q, k, v = qkv.unbind(0)
        if self.temperature is not None:
            tau = self.max_temperature * self.temperature.sigmoid()  # [H]
            scale = (tau * self.head_dim**0.5).sqrt()[:, None, None]  # logits are d^-1/2 q.k
            q, k = F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1) * scale
        if self.log_scale is not None:
            growth = self.log_growth(x, key_mask) ** 0.5  # each of q and k gets the root
            q, k = q * growth, k * growth
        focus = None if self.locality is None else Focus(self.locality, cast(Tensor, positions), num_prefix)

        def attend(values: Tensor) -> Tensor:
            return cast(Tensor, self.attend(q, k, values, rotation=rotation, focus=focus, key_mask=key_mask))

        out = attend(v) if self.values is None else self.values(attend, v, tokens=x, queries=q, positions=positions)
        return cast(Tensor, self.out(out.transpose(1, 2).flatten(-2)))  # [B, N, D]
