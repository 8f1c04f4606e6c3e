"""Changes to a trained model that each take one thing away or put one right, without training, and go back.

Those on its attention are here, those on its tokens in `eval/tokens.py`; GROUPS names them, for `python -m eval
intervene`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from eval.changes import Intervention, each_and_all, hooked, swapped
from eval.dense import expected
from eval.tokens import fewer_tokens, near_keys, shuffled_patches
from performer_string import ViT
from performer_string.feature_maps import RandomFeatures
from performer_string.feature_maps.arc_cosine import ArcCosineFeatures
from performer_string.layers.backends import AttentionBackend, SoftmaxBackend, build_attention
from performer_string.utils.seeds import derive_seed


def by_layer(vit: ViT, name: str, make: Callable[[int], AttentionBackend]) -> dict[str, Intervention]:
    return {title: partial(swapped, layers=some, make=make) for title, some in each_and_all(vit, name).items()}


def softmax(vit: ViT) -> dict[str, Intervention]:
    """Exact softmax of d^-1/2 q.k: another kernel, unless the map is an estimate of it."""
    if vit.config.attention == "softmax":
        return {}
    return by_layer(vit, "softmax", lambda layer: SoftmaxBackend())


def drawn(vit: ViT) -> list[RandomFeatures]:
    """The maps with a draw, which learned features are not."""
    return [module for module in vit.modules() if isinstance(module, RandomFeatures) and not module.learned]


def expected_kernel(vit: ViT) -> dict[str, Intervention]:
    """The map's own kernel without the variance of a draw."""
    if not drawn(vit):
        return {}
    found = [expected(attend) for attend in vit.backends()]
    if None in found:
        return {}
    return by_layer(vit, "expected kernel", lambda layer: cast(AttentionBackend, found[layer]))


def more_features(vit: ViT, times: int = 8) -> dict[str, Intervention]:
    """A fresh draw of so many times the features."""
    c, phis = vit.config, drawn(vit)
    if not phis:
        return {}
    options = {**c.feature_options, "num_features": times * phis[0].num_features}

    def wider(layer: int) -> AttentionBackend:
        sizes = {"head_dim": phis[0].head_dim, "num_heads": phis[0].num_heads}
        seed = derive_seed(c.seed, "more features", layer)
        attend = build_attention(c.attention, feature_map=c.feature_map, feature_options=options, seed=seed, **sizes)
        return attend.to(phis[0].projection.device)

    return {f"{times} times the features": partial(swapped, layers=range(len(vit.blocks)), make=wider)}


@contextmanager
def redrawn(vit: ViT, draw: int) -> Iterator[None]:
    """New random features that no training had: those of a negative step."""
    before = [copy.deepcopy(attend.state_dict()) for attend in vit.backends()]
    try:
        vit.redraw(-1 - draw)
        yield
    finally:
        for attend, state in zip(vit.backends(), before, strict=True):
            attend.load_state_dict(state)


def draws(vit: ViT, count: int = 5) -> dict[str, Intervention]:
    """Other draws of the features: their spread is what the draw decides."""
    if vit.config.attention != "performer-pytorch" and not drawn(vit):
        return {}
    return {f"draw {draw}": partial(redrawn, draw=draw) for draw in range(count)}


@contextmanager
def sharper(vit: ViT) -> Iterator[None]:
    """Logits times log N / log N_train; with a map that sees no such factor, its order times that, rounded."""
    reference = math.log(math.prod(vit.train_grid) + vit.num_prefix)
    phis = [module for module in vit.modules() if isinstance(module, ArcCosineFeatures)]
    orders = [phi.order for phi in phis]

    def scale(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        growth = math.log(args[0].shape[-2]) / reference
        if phis:
            for phi, order in zip(phis, orders, strict=True):
                phi.order = max(1, round(order * growth))
            return None
        return (args[0] * growth**0.5, args[1] * growth**0.5, *args[2:]), kwargs

    try:
        with hooked(vit, scale):
            yield
    finally:
        for phi, order in zip(phis, orders, strict=True):
            phi.order = order


def temperature(vit: ViT) -> dict[str, Intervention]:
    """As if temperature had grown with log N; no effect at the training size."""
    reached = not vit.backends()[0].homogeneous or any(isinstance(m, ArcCosineFeatures) for m in vit.modules())
    many = math.prod(vit.train_grid) + vit.num_prefix > 1
    return {"log N temperature": sharper} if reached and many and not vit.config.log_n_scaling else {}


GROUPS: dict[str, Callable[[ViT], dict[str, Intervention]]] = {
    "softmax": softmax,
    "expected": expected_kernel,
    "features": more_features,
    "draws": draws,
    "temperature": temperature,
    "thinned": fewer_tokens,
    "near": near_keys,
    "shuffled": shuffled_patches,
}


def interventions(vit: ViT, groups: Sequence[str] = tuple(GROUPS)) -> dict[str, Intervention]:
    """Those of the groups that make sense for the model, by name."""
    return {name: change for group in groups for name, change in GROUPS[group](vit).items()}
