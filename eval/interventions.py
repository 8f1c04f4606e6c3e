"""Changes to a trained model that each take one thing away or put one right, without training, and go back.

An intervention is a function from a model to a context manager. Within it the model is changed; after it, whatever
happened, it is what it was. GROUPS names them, for `python -m eval intervene`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from einops import rearrange
from torch import Tensor, nn

from eval.dense import NearKeys, expected
from performer_string import ViT
from performer_string.attend import Attend, SoftmaxAttention, build_attention
from performer_string.features import RandomFeatures, derive_seed
from performer_string.features.arc_cosine import ArcCosineFeatures

Intervention = Callable[[ViT], AbstractContextManager[None]]


@contextmanager
def swapped(vit: ViT, layers: Sequence[int], make: Callable[[int], Attend]) -> Iterator[None]:
    """`make(layer)` in place of how these layers attend."""
    before = vit.attends()
    try:
        for layer in layers:
            vit.attentions()[layer].attend = make(layer)
        yield
    finally:
        for attention, attend in zip(vit.attentions(), before, strict=True):
            attention.attend = attend


def each_and_all(vit: ViT, name: str) -> dict[str, list[int]]:
    """Each layer alone, and all of them, by title."""
    layers = list(range(len(vit.blocks)))
    return {**{f"{name}, layer {i}": [i] for i in layers}, f"{name}, all layers": layers}


def by_layer(vit: ViT, name: str, make: Callable[[int], Attend]) -> dict[str, Intervention]:
    return {title: partial(swapped, layers=some, make=make) for title, some in each_and_all(vit, name).items()}


def softmax(vit: ViT) -> dict[str, Intervention]:
    """Exact softmax of d^-1/2 q.k: another kernel, unless the map is an estimate of it."""
    if vit.config.attention == "softmax":
        return {}
    return by_layer(vit, "softmax", lambda layer: SoftmaxAttention())


def drawn(vit: ViT) -> list[RandomFeatures]:
    """The maps with a draw, which learned features are not."""
    return [module for module in vit.modules() if isinstance(module, RandomFeatures) and not module.learned]


def expected_kernel(vit: ViT) -> dict[str, Intervention]:
    """The map's own kernel without the variance of a draw."""
    if not drawn(vit):
        return {}
    found = [expected(attend) for attend in vit.attends()]
    if None in found:
        return {}
    return by_layer(vit, "expected kernel", lambda layer: cast(Attend, found[layer]))


def more_features(vit: ViT, times: int = 8) -> dict[str, Intervention]:
    """A fresh draw of so many times the features."""
    c, phis = vit.config, drawn(vit)
    if not phis:
        return {}
    options = {**c.feature_options, "num_features": times * phis[0].num_features}

    def wider(layer: int) -> Attend:
        sizes = {"head_dim": phis[0].head_dim, "num_heads": phis[0].num_heads}
        seed = derive_seed(c.seed, "more features", layer)
        attend = build_attention(c.attention, feature_map=c.feature_map, feature_options=options, seed=seed, **sizes)
        return attend.to(phis[0].projection.device)

    return {f"{times} times the features": partial(swapped, layers=range(len(vit.blocks)), make=wider)}


@contextmanager
def redrawn(vit: ViT, draw: int) -> Iterator[None]:
    """New random features that no training had: those of a negative step."""
    before = [copy.deepcopy(attend.state_dict()) for attend in vit.attends()]
    try:
        vit.redraw(-1 - draw)
        yield
    finally:
        for attend, state in zip(vit.attends(), before, strict=True):
            attend.load_state_dict(state)


def draws(vit: ViT, count: int = 5) -> dict[str, Intervention]:
    """Other draws of the features: their spread is what the draw decides."""
    if vit.config.attention != "performer-pytorch" and not drawn(vit):
        return {}
    return {f"draw {draw}": partial(redrawn, draw=draw) for draw in range(count)}


@contextmanager
def hooked(vit: ViT, hook: Callable[..., Any], layers: Sequence[int] | None = None) -> Iterator[None]:
    """`hook(attend, args, kwargs)` before the attention of these layers, of all by default, to give it others."""
    attends = vit.attends()
    with ExitStack() as stack:
        for layer in range(len(attends)) if layers is None else layers:
            handle = attends[layer].register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield


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
    reached = not vit.attends()[0].homogeneous or any(isinstance(m, ArcCosineFeatures) for m in vit.modules())
    many = math.prod(vit.train_grid) + vit.num_prefix > 1
    return {"log N temperature": sharper} if reached and many and not vit.config.log_scale else {}


def blank_patches(vit: ViT, images: Tensor) -> Tensor:
    """Where a patch has one value all over, [B, N]."""
    patches = rearrange(images, "b c (h p) (w q) -> b (h w) c (p q)", p=vit.patch[0], q=vit.patch[1])
    return (patches.amax(-1) == patches.amin(-1)).all(-1)


@contextmanager
def thinned(vit: ViT, keys: Sequence[int], pool: bool) -> Iterator[None]:
    """No more tokens than in training: every patch that is not blank, and blank ones at random for the rest.

    As keys of the layers given (queries are all there), or in the mean that is pooled. At the training size nothing
    changes.
    """
    most, generator = math.prod(vit.train_grid), torch.Generator().manual_seed(0)
    kept: list[Tensor] = []

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        blank = blank_patches(vit, args[0])
        order = (~blank).float() + torch.rand(blank.shape, generator=generator).to(blank.device) / 2
        chosen = order.topk(min(most, blank.shape[1]), dim=-1).indices
        kept[:] = [torch.zeros_like(blank).scatter(-1, chosen, True)]

    def mask(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        prefix = kept[0].new_ones(len(kept[0]), vit.num_prefix)
        return args, {**kwargs, "key_mask": torch.cat([prefix, kept[0]], dim=1)}

    def reweigh(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        share = kept[0].to(out) / kept[0].sum(-1, keepdim=True) * kept[0].shape[1]  # of mean one
        return torch.cat([out[:, : vit.num_prefix], out[:, vit.num_prefix :] * share[..., None]], dim=1)

    with ExitStack() as stack:
        stack.callback(vit.register_forward_pre_hook(look).remove)
        stack.enter_context(hooked(vit, mask, keys))
        if pool:
            stack.callback(vit.norm.register_forward_hook(reweigh).remove)
        yield


def fewer_tokens(vit: ViT) -> dict[str, Intervention]:
    """Whether it is the number of tokens that costs accuracy, and not the distances between them."""
    found: dict[str, Intervention] = {}
    layers = list(range(len(vit.blocks)))
    masks, mean = vit.config.attention != "performer-pytorch", vit.config.pool == "mean"
    if masks:
        chosen = each_and_all(vit, "keys thinned")
        found |= {title: partial(thinned, keys=some, pool=False) for title, some in chosen.items()}
    if mean:
        found["pooling thinned"] = partial(thinned, keys=[], pool=True)
    if masks and mean:
        found["keys and pooling thinned"] = partial(thinned, keys=layers, pool=True)
    return found


@contextmanager
def near(vit: ViT, layers: Sequence[int]) -> Iterator[None]:
    """Only keys whose offset from the query lies in the training grid. At the training size nothing changes."""
    attends, extent = vit.attends(), [n - 1 for n in vit.train_grid]

    def place(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        cast(NearKeys, module.attend).place(kwargs["positions"], kwargs["num_prefix"])

    with swapped(vit, layers, lambda i: NearKeys(attends[i], extent)), ExitStack() as stack:
        for i in layers:
            handle = vit.attentions()[i].register_forward_pre_hook(place, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def near_keys(vit: ViT) -> dict[str, Intervention]:
    """Whether it is the distances that cost accuracy: offsets that training never had."""
    return {title: partial(near, layers=some) for title, some in each_and_all(vit, "near keys").items()}


@contextmanager
def shuffled(vit: ViT) -> Iterator[None]:
    """The patches of each image in an order of its own."""
    generator = torch.Generator().manual_seed(0)

    def permute(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if args[0].shape[1] != vit.config.in_channels:
            return args  # which the model refuses
        sizes = dict(zip("hw", vit.grid(*args[0].shape[-2:]), strict=True), p=vit.patch[0], q=vit.patch[1])
        patches = rearrange(args[0], "b c (h p) (w q) -> b (h w) c p q", **sizes)
        order = torch.rand(patches.shape[:2], generator=generator).argsort(-1).to(patches.device)
        patches = patches.gather(1, order[..., None, None, None].expand_as(patches))
        return (rearrange(patches, "b (h w) c p q -> b c (h p) (w q)", **sizes), *args[1:])

    handle = vit.register_forward_pre_hook(permute)
    try:
        yield
    finally:
        handle.remove()


def shuffled_patches(vit: ViT) -> dict[str, Intervention]:
    """What the order of the patches is worth: a model without positions sees none of it."""
    return {"patches shuffled": shuffled}


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
