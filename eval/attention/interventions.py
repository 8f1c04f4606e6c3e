"""Changes to a trained model, without training, that each remove or correct one suspected cause of errors.

Interventions on attention are here, those on tokens in `token_interventions.py`. `GROUPS` lists all of them, for
`python -m eval intervene`. A group is a function from a model to its applicable interventions, by title.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from eval.attention.dense_attention import expected_backend
from eval.attention.token_interventions import (
    fewer_tokens,
    moved_positions,
    near_keys,
    no_blank_patches,
    shuffled_patches,
)
from eval.model_changes import Intervention, ModelChanges, each_and_all_layers, replace_backends
from performer_string import ViT
from performer_string.feature_maps import RandomFeatures
from performer_string.feature_maps.arc_cosine import ArcCosineFeatures
from performer_string.layers.backends import AttentionBackend, SoftmaxBackend, build_attention
from performer_string.utils.seeds import derive_seed


def other_backends(vit: ViT, name: str, make: Callable[[int], AttentionBackend]) -> dict[str, Intervention]:
    """Return interventions that replace the backend by `make(layer)`: in each layer alone, and in all layers."""
    by_title = each_and_all_layers(vit, name)
    return {title: partial(replace_backends, layers=layers, make=make) for title, layers in by_title.items()}


def softmax(vit: ViT) -> dict[str, Intervention]:
    """Replace attention by exact softmax of d^-1/2 q.k: another kernel, unless the map is an estimate of it."""
    if vit.config.kinds_of_attention() == ["softmax"]:
        return {}
    return other_backends(vit, "softmax", lambda layer: SoftmaxBackend())


def drawn_maps(vit: ViT) -> list[RandomFeatures]:
    """Return the feature maps with random draws; learned features have none."""
    return [module for module in vit.modules() if isinstance(module, RandomFeatures) and not module.learned]


def expected_kernel(vit: ViT) -> dict[str, Intervention]:
    """Replace attention by the kernel that the feature map estimates, without the variance of a draw."""
    if not drawn_maps(vit):
        return {}
    backends = [expected_backend(backend) for backend in vit.backends()]
    if None in backends:
        return {}
    return other_backends(vit, "expected kernel", lambda layer: cast(AttentionBackend, backends[layer]))


def more_features(vit: ViT, times: int = 8) -> dict[str, Intervention]:
    """Replace the features by a new draw of `times` as many."""
    c, maps = vit.config, drawn_maps(vit)
    if not maps:
        return {}
    options = {**c.feature_options, "num_features": times * maps[0].num_features}

    def make(layer: int) -> AttentionBackend:
        sizes: dict[str, Any] = {"head_dim": maps[0].head_dim, "num_heads": maps[0].num_heads}
        seed = derive_seed(c.seed, "more features", layer)
        features: dict[str, Any] = {"feature_map": c.feature_map, "feature_options": options, "seed": seed}
        backend = build_attention(c.attention_of(layer), **features, **sizes)
        return backend.to(maps[0].projection.device)

    return {f"{times} times the features": partial(replace_backends, layers=range(len(vit.blocks)), make=make)}


def redraw(vit: ViT, changes: ModelChanges, draw: int) -> None:
    """Draw random features that no training step used: those of a negative step."""
    for backend in vit.backends():
        changes.callback(backend.load_state_dict, copy.deepcopy(backend.state_dict()))
    vit.redraw(-1 - draw)


def other_draws(vit: ViT, count: int = 5) -> dict[str, Intervention]:
    """Replace the features by other draws; their spread is the effect of the draw on accuracy."""
    if "performer-pytorch" not in vit.config.kinds_of_attention() and not drawn_maps(vit):
        return {}
    return {f"draw {draw}": partial(redraw, draw=draw) for draw in range(count)}


def scale_temperature(vit: ViT, changes: ModelChanges) -> None:
    """Multiply logits by log N / log N_train.

    Where a feature map does not depend on that factor, its order is multiplied by it and rounded.
    """
    reference = math.log(math.prod(vit.train_grid) + vit.num_prefix)
    maps = [module for module in vit.modules() if isinstance(module, ArcCosineFeatures)]
    orders = [phi.order for phi in maps]

    def scale(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        growth = math.log(args[0].shape[-2]) / reference
        if maps:
            for phi, order in zip(maps, orders, strict=True):
                phi.order = max(1, round(order * growth))
            return None
        return (args[0] * growth**0.5, args[1] * growth**0.5, *args[2:]), kwargs

    for phi in maps:
        changes.replace(phi, "order", phi.order)
    for backend in vit.backends():
        changes.before(backend, scale)


def temperature(vit: ViT) -> dict[str, Intervention]:
    """Scale the temperature by log N / log N_train, which has no effect at the training resolution."""
    has_arc_cosine = any(isinstance(module, ArcCosineFeatures) for module in vit.modules())
    has_effect = has_arc_cosine or not vit.backends()[0].homogeneous
    several_tokens = math.prod(vit.train_grid) + vit.num_prefix > 1
    if has_effect and several_tokens and not vit.config.log_n_scaling:
        return {"log N temperature": scale_temperature}
    return {}


GROUPS: dict[str, Callable[[ViT], dict[str, Intervention]]] = {
    "softmax": softmax,
    "expected": expected_kernel,
    "features": more_features,
    "draws": other_draws,
    "temperature": temperature,
    "thinned": fewer_tokens,
    "blank": no_blank_patches,
    "near": near_keys,
    "moved": moved_positions,
    "shuffled": shuffled_patches,
}
# Groups that apply the rotation of queries and keys in another backend; not applicable where features are rotated.
OTHER_BACKENDS = ("softmax", "expected", "features", "near")


def interventions(vit: ViT, groups: Sequence[str] = tuple(GROUPS)) -> dict[str, Intervention]:
    """Return the interventions of some groups that apply to a model, by title."""
    if any(backend.rotates_features for backend in vit.backends()):
        groups = [group for group in groups if group not in OTHER_BACKENDS]
    return {title: change for group in groups for title, change in GROUPS[group](vit).items()}
