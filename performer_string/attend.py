"""Ways to attend, by name: linear, exact softmax, and performer-pytorch's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from performer_string import naive
from performer_string.attention import linear_attention, rotate_pair, softmax_attention
from performer_string.choices import lookup
from performer_string.features import FeatureMap, build_feature_map, derive_seed
from performer_string.locality import OffsetKernel
from performer_string.rotation import Rotation


@dataclass(frozen=True)
class Focus:
    """A locality with the places of the tokens that it is to see, the first `num_prefix` of which have none."""

    locality: OffsetKernel
    positions: Tensor
    num_prefix: int = 0

    @cached_property
    def matrix(self) -> Tensor:
        """lambda(p_i - p_j), [H, N, N]."""
        return self.locality.matrix(self.positions, self.num_prefix)

    def weights(self, weights: Tensor, rows: slice = slice(None)) -> Tensor:
        """What the values are summed with, of the normalised attention [B, H, n, N] of these rows: for study."""
        return naive.focused_weights(weights, self.matrix[:, rows], self.locality.normalised)


def relu_power(x: Tensor, order: int) -> Tensor:
    return x.relu() ** order


def arguments(focus: Focus | None) -> dict[str, Any]:
    if focus is None:
        return {}
    return {"locality": focus.locality, "positions": focus.positions, "num_prefix": focus.num_prefix}


class Attend(nn.Module):
    """A way to attend: what the layer, the trainer's diagnostics and the evaluations ask of it.

    Attributes:
        homogeneous: no weight changes with a common factor of the queries and keys, so that a temperature has no
            effect.
        logit_scale: s of the logits s q.k that it sees; None for d^-1/2, or where there are none.
    """

    homogeneous: bool = False
    logit_scale: float | None = None

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
        key_bias: Tensor | None = None,
    ) -> Tensor:
        """[B, H, N, d] each, to [B, H, N, d]."""
        raise NotImplementedError

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None, key_bias: Tensor | None = None) -> Tensor:
        """The attention matrix that it implies, dense and before any locality, [B, H, N, N]: for study."""
        raise NotImplementedError

    @property
    def drawn(self) -> bool:
        """Whether there are random features."""
        return False

    def redraw(self, step: int) -> None:
        """New random features, a function of (seed, step) alone; nothing where there are none."""


class SoftmaxAttention(Attend):
    """`softmax_attention` as a module."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
        key_bias: Tensor | None = None,
    ) -> Tensor:
        given = arguments(focus)
        return softmax_attention(q, k, v, rotation=rotation, key_mask=key_mask, key_bias=key_bias, **given)

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None, key_bias: Tensor | None = None) -> Tensor:
        return naive.softmax_weights(*rotate_pair(q, k, rotation), key_bias=key_bias)


class LinearAttention(Attend):
    """`linear_attention` with its feature map."""

    def __init__(self, head_dim: int, num_heads: int, feature_map: str, seed: int, **options: Any):
        super().__init__()
        self.phi = build_feature_map(feature_map, head_dim=head_dim, num_heads=num_heads, seed=seed, **options)
        self.homogeneous, self.logit_scale = self.phi.homogeneous, self.phi.scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        focus: Focus | None = None,
        key_mask: Tensor | None = None,
        key_bias: Tensor | None = None,
    ) -> Tensor:
        given = arguments(focus)
        return linear_attention(q, k, v, self.phi, rotation=rotation, key_mask=key_mask, key_bias=key_bias, **given)

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None, key_bias: Tensor | None = None) -> Tensor:
        return naive.linear_weights(*self.phi.pair(*rotate_pair(q, k, rotation)), key_bias=key_bias)

    @property
    def drawn(self) -> bool:
        return type(self.phi).redraw is not FeatureMap.redraw

    def redraw(self, step: int) -> None:
        self.phi.redraw(step)


class PerformerPytorchAttention(Attend):
    """FastAttention of the package performer-pytorch, as it stands, behind our rotations: for comparison.

    Its epsilons (1e-4 in the softmax kernel, 1e-3 in the generalised one), its one draw for all heads and its
    stabilisers are its own. It knows no key mask, no key bias and no locality.
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
                kernel_fn=partial(relu_power, order=order),
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
        key_bias: Tensor | None = None,
    ) -> Tensor:
        if key_mask is not None:
            raise ValueError('attention "performer-pytorch" has no key mask; use "linear".')
        if key_bias is not None:
            raise ValueError('attention "performer-pytorch" has no key bias; use "linear" or "softmax".')
        if focus is not None:
            raise ValueError('attention "performer-pytorch" has no locality; use "linear" or "softmax".')
        q, k = rotate_pair(q, k, rotation)
        return cast(Tensor, self.fast(q, k, v))

    def weights(self, q: Tensor, k: Tensor, rotation: Rotation | None = None, key_bias: Tensor | None = None) -> Tensor:
        eye = torch.eye(k.shape[-2], device=k.device, dtype=k.dtype).expand(*k.shape[:2], -1, -1)
        return self(q, k, eye, rotation=rotation, key_bias=key_bias)  # the package shows no features, but A I = A

    @property
    def drawn(self) -> bool:
        return True

    def redraw(self, step: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, step))
            self.fast.redraw_projection_matrix(torch.device("cpu"))


ATTENTIONS: dict[str, type[Attend]] = {
    "linear": LinearAttention,
    "softmax": SoftmaxAttention,
    "performer-pytorch": PerformerPytorchAttention,
}


def build_attention(
    name: str, *, head_dim: int, num_heads: int, feature_map: str, seed: int, feature_options: Mapping[str, Any]
) -> Attend:
    """A way to attend by its name in `ATTENTIONS`. Softmax has no features: it leaves the last three unused."""
    kind = lookup("attention", name, ATTENTIONS)
    if kind is SoftmaxAttention:
        return SoftmaxAttention()
    return kind(head_dim, num_heads, feature_map, seed, **feature_options)
