"""Interventions on the tokens: how many take part, how far they may lie, and their order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from eval.changes import Intervention, each_and_all, hooked, swapped
from eval.dense import NearKeys
from performer_string import ViT


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
        layout = replace(kwargs["layout"], mask=torch.cat([prefix, kept[0]], dim=1))
        return args, {**kwargs, "layout": layout}

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


def near(vit: ViT, layers: Sequence[int]) -> AbstractContextManager[None]:
    """Only keys whose offset from the query lies in the training grid. At the training size nothing changes."""
    backends, extent = vit.backends(), [n - 1 for n in vit.train_grid]
    return swapped(vit, layers, lambda i: NearKeys(backends[i], extent))


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
