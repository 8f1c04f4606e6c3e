"""Attention backends by name: linear attention, exact softmax, and two baselines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from performer_string.feature_maps import FEATURE_MAPS, FeatureMap, build_feature_map
from performer_string.layers.attention_backend import AttentionBackend, check_has, identity_values
from performer_string.ops import reference
from performer_string.ops.layout import AttentionContext
from performer_string.ops.linear import attend_linear
from performer_string.ops.rotary import rotate_pair
from performer_string.ops.rotated_features import attend_rotated_features
from performer_string.ops.softmax import attend_softmax
from performer_string.utils.registry import (
    OFFERED,
    RESERVED_OPTIONS,
    check_options,
    check_reserved,
    construct,
    lookup,
)
from performer_string.utils.renames import current_name
from performer_string.utils.seeds import seeded

__all__ = [
    "ATTENTIONS",
    "AttentionBackend",
    "AttentionContext",
    "LinearBackend",
    "PerformerPytorchBackend",
    "RotatedFeaturesBackend",
    "SoftmaxBackend",
    "build_attention",
    "identity_values",
]

ROTATED_FEATURES = "linear-rotated-features"


def rectified_power(x: Tensor, order: int) -> Tensor:
    """Return relu(x)^order; a function of the module's top level, so that a model can be pickled."""
    return x.relu() ** order


class SoftmaxBackend(AttentionBackend):
    """`softmax_attention` as a module."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        return attend_softmax(q, k, v, context)

    def matrix(self, q: Tensor, k: Tensor, context: AttentionContext) -> Tensor:
        rotated = rotate_pair(q, k, context.rotation)
        return reference.softmax_weights(*rotated, key_mask=context.layout.mask, key_bias=context.key_bias)


class LinearBackend(AttentionBackend):
    """`linear_attention` with its feature map.

    Args:
        phi: feature map, as `build_feature_map` returns it.
    """

    def __init__(self, phi: FeatureMap):
        super().__init__()
        self.phi, self.homogeneous, self.logit_scale = phi, phi.homogeneous, phi.scale

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        return attend_linear(q, k, v, self.phi, context)

    def matrix(self, q: Tensor, k: Tensor, context: AttentionContext) -> Tensor:
        key_mask = context.layout.mask  # masked keys must not set the scale of the features either
        features = self.phi.pair(*rotate_pair(q, k, context.rotation), key_mask)
        return reference.linear_weights(*features, key_mask=key_mask, key_bias=context.key_bias)


class RotatedFeaturesBackend(LinearBackend):
    """`rotated_feature_attention` with its feature map: linear attention with the rotation after the map, a baseline.

    Its rotations have the width of the features. It has no relative bias.
    """

    rotates_features = True
    lacks = frozenset({"locality"})

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        return attend_rotated_features(q, k, v, self.phi, context)


class PerformerPytorchBackend(AttentionBackend):
    """FastAttention of the package performer-pytorch, after our rotations: a baseline, with what it `lacks`.

    Its epsilons (1e-4 for softmax, 1e-3 for others), its one draw for all heads and its stabilisers are its own.

    Args:
        head_dim, num_heads: width d and number H of heads.
        feature_map: name of the feature map, `favor+` or `arc-cosine`.
        seed: seed of the random features.
        feature_options: options of the feature map: `num_features`, and `order` of `arc-cosine`.
    """

    lacks = frozenset({"locality", "key mask", "key bias"})

    def __init__(self, head_dim: int, num_heads: int, feature_map: str, seed: int, feature_options: Mapping[str, Any]):
        super().__init__()
        try:
            from performer_pytorch import FastAttention  # slow to import, and needed by this backend only
        except ImportError as error:
            raise ImportError(f"{error}: pip install performer-pytorch setuptools") from error

        feature_map = current_name("feature map", feature_map)
        known = {"favor+": {"num_features"}, "arc-cosine": {"num_features", "order"}}
        for option in set(feature_options) - lookup("feature map of performer-pytorch", feature_map, known):
            raise ValueError(f"performer-pytorch with {feature_map!r} has no option {option!r}.")
        generalized = feature_map == "arc-cosine"
        self.seed, self.homogeneous = seed, generalized  # up to its epsilon
        with seeded(seed, 0):
            self.fast = FastAttention(
                head_dim,
                nb_features=feature_options.get("num_features", 256),
                generalized_attention=generalized,
                kernel_fn=partial(rectified_power, order=feature_options.get("order", 1)),
            )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        q, k = rotate_pair(q, k, context.rotation)
        return cast(Tensor, self.fast(q, k, v))

    @property
    def has_random_features(self) -> bool:
        return True

    def redraw(self, step: int) -> None:
        with seeded(self.seed, step):
            self.fast.redraw_projection_matrix(torch.device("cpu"))


ATTENTIONS: dict[str, type[AttentionBackend]] = {
    "linear": LinearBackend,
    "softmax": SoftmaxBackend,
    ROTATED_FEATURES: RotatedFeaturesBackend,
    "performer-pytorch": PerformerPytorchBackend,
}


def check_capable(attention: str, wanted: Mapping[str, bool]) -> None:
    """Raise a ValueError for options that an attention does not have.

    Args:
        attention: name of the backend in `ATTENTIONS`.
        wanted: options, each with whether it is asked for.
    """
    check_has(attention, ATTENTIONS[attention].lacks, wanted)


def takes(kind: Callable[..., AttentionBackend], *names: str) -> bool:
    """Return whether a constructor has an argument of one of these names."""
    return any(name in inspect.signature(kind).parameters for name in names)


def check_attention_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise a ValueError for options that an attention does not take, or that are of another type than annotated."""
    offered = OFFERED["attention"]
    check_reserved("attention_options", options, offered)
    check_options("attention", name, lookup("attention", name, ATTENTIONS), options, offered)


def build_attention(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    feature_map: str = "favor+",
    seed: int = 0,
    feature_options: Mapping[str, Any] | None = None,
    attention_options: Mapping[str, Any] | None = None,
) -> AttentionBackend:
    """Build an attention backend by its name in `ATTENTIONS`.

    A constructor gets, by name, those of these arguments that it has. One with an argument `phi` gets the feature map.

    Args:
        name: name of the backend: `linear`, `softmax`, `linear-rotated-features` or `performer-pytorch`. With softmax
            `feature_map` and `feature_options` are checked, and have no effect.
        head_dim, num_heads: width of a head's queries and keys, and number H of heads.
        feature_map: name of the feature map in `FEATURE_MAPS`.
        seed: seed of the random features.
        feature_options: options of the feature map.
        attention_options: options of the backend itself. Those of the library have none.

    Raises:
        ValueError: an unknown name or option, with the nearest known one.
    """
    kind, options = lookup("attention", name, ATTENTIONS), dict(feature_options or {})
    check_reserved("feature_options", options)
    check_attention_options(name, attention_options or {})
    sizes = {"head_dim": head_dim, "num_heads": num_heads}
    offered: dict[str, Any] = {**sizes, "feature_map": feature_map, "feature_options": options, "seed": seed}
    if takes(kind, "phi"):
        offered["phi"] = build_feature_map(feature_map, seed=seed, **cast(Any, sizes), **options)
    elif not takes(kind, "feature_options"):
        build = lookup("feature map", feature_map, FEATURE_MAPS)
        check_options("feature map", feature_map, build, options, RESERVED_OPTIONS)
    return construct("attention", name, kind, attention_options or {}, offered)
