"""Interventions on the tokens: their number, positions, distances and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from eval.attention.dense_attention import NearKeys
from eval.model_changes import Intervention, ModelChanges, each_and_all_layers, replace_backends
from performer_string import ViT
from performer_string.models.vit.patches import blank_patches


def thin_tokens(vit: ViT, changes: ModelChanges, layers: Sequence[int], pool: bool) -> None:
    """Attend to no more tokens than in training: all patches that are not blank, and random blank ones.

    At the training resolution nothing changes.

    Args:
        vit, changes: the arguments of every intervention.
        layers: indices of the layers whose keys are thinned; their queries are kept.
        pool: whether mean pooling is thinned too.
    """
    most, generator = math.prod(vit.train_grid), torch.Generator().manual_seed(0)
    chosen: Tensor  # [B, N], for the current batch of images

    def choose(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        nonlocal chosen
        blank = blank_patches(args[0], vit.patch)
        order = (~blank).float() + torch.rand(blank.shape, generator=generator).to(blank.device) / 2
        indices = order.topk(min(most, blank.shape[1]), dim=-1).indices
        chosen = torch.zeros_like(blank).scatter(-1, indices, True)

    def mask_keys(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        prefix = chosen.new_ones(len(chosen), vit.num_prefix)
        layout = kwargs["layout"].replace(mask=torch.cat([prefix, chosen], dim=1))
        return args, {**kwargs, "layout": layout}

    def weight_tokens(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        share = chosen.to(out) / chosen.sum(-1, keepdim=True) * chosen.shape[1]  # the mean is one
        return torch.cat([out[:, : vit.num_prefix], out[:, vit.num_prefix :] * share[..., None]], dim=1)

    changes.before(vit, choose)
    for layer in layers:
        changes.before(vit.backends()[layer], mask_keys)
    if pool:
        changes.after(vit.norm, weight_tokens)


def takes_mask(vit: ViT) -> bool:
    """Return whether the attention of every layer can leave keys out."""
    return not any("key mask" in backend.lacks for backend in vit.backends())


def fewer_tokens(vit: ViT) -> dict[str, Intervention]:
    """Test whether the number of tokens, rather than the distances between them, costs accuracy."""
    if vit.config.mask_blank_patches:
        return {}  # there are no blank ones to thin
    interventions: dict[str, Intervention] = {}
    every_layer = list(range(len(vit.blocks)))
    has_mask, has_mean = takes_mask(vit), vit.config.pool == "mean"
    if has_mask:
        by_title = each_and_all_layers(vit, "keys thinned")
        interventions |= {title: partial(thin_tokens, layers=layers, pool=False) for title, layers in by_title.items()}
    if has_mean:
        interventions["pooling thinned"] = partial(thin_tokens, layers=[], pool=True)
    if has_mask and has_mean:
        interventions["keys and pooling thinned"] = partial(thin_tokens, layers=every_layer, pool=True)
    return interventions


def mask_blank(vit: ViT, changes: ModelChanges) -> None:
    """Leave blank patches out, as keys and in the pooling, as `mask_blank_patches` does."""
    changes.replace(vit.config, "mask_blank_patches", True)


def no_blank_patches(vit: ViT) -> dict[str, Intervention]:
    """Test whether blank patches, of which larger images have more, cost accuracy."""
    return {"blank patches masked": mask_blank} if takes_mask(vit) and not vit.config.mask_blank_patches else {}


def attend_nearby(vit: ViT, changes: ModelChanges, layers: Sequence[int]) -> None:
    """Restrict layers to keys whose offset occurs in the training grid; nothing changes on that grid."""
    backends, extent = vit.backends(), [n - 1 for n in vit.train_grid]
    replace_backends(vit, changes, layers, lambda layer: NearKeys(backends[layer], extent))


def near_keys(vit: ViT) -> dict[str, Intervention]:
    """Test whether offsets that did not occur in training cost accuracy."""
    by_title = each_and_all_layers(vit, "near keys")
    return {title: partial(attend_nearby, layers=layers) for title, layers in by_title.items()}


def move_positions(vit: ViT, changes: ModelChanges, patches: float) -> None:
    """Add the same number of patches to all positions along each axis."""

    def move(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        positions = vit.grid_positions(vit.grid(*args[0].shape[2:]), args[0].device)
        return args, {**kwargs, "positions": positions + patches}

    changes.before(vit, move)


def moved_positions(vit: ViT) -> dict[str, Intervention]:
    """Test whether a translation of all positions costs accuracy, for models with random features.

    Their weights are invariant in the mean over draws, but not for a single draw; other models are invariant. A larger
    image has such positions, too, besides more tokens and larger distances.
    """
    if vit.config.centred or not any(backend.has_random_features for backend in vit.backends()):
        return {}
    if vit.encoding.additive or not vit.encoding.extrapolates or vit.absolute is not None:
        return {}
    return {f"positions moved by {n}": partial(move_positions, patches=n) for n in (4, 8, 16, 32)}


def shuffle_patches(vit: ViT, changes: ModelChanges) -> None:
    """Put the patches of each image, or of all frames of a video, into a random order."""
    generator, axes = torch.Generator().manual_seed(0), range(len(vit.patch))
    image, cells, pixels = (" ".join(form.format(i) for i in axes) for form in ("(n{0} p{0})", "n{0}", "p{0}"))

    def permute(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        if args[0].shape[1] != vit.config.in_channels:
            return None  # the model rejects these images
        sizes = {f"n{i}": n for i, n in enumerate(vit.grid(*args[0].shape[2:]))}
        sizes |= {f"p{i}": p for i, p in enumerate(vit.patch)}
        patches = rearrange(args[0], f"b c {image} -> b ({cells}) (c {pixels})", **sizes)
        order = torch.rand(patches.shape[:2], generator=generator).argsort(-1).to(patches.device)
        patches = patches.gather(1, order[..., None].expand_as(patches))
        return (rearrange(patches, f"b ({cells}) (c {pixels}) -> b c {image}", **sizes), *args[1:]), kwargs

    changes.before(vit, permute)


def shuffled_patches(vit: ViT) -> dict[str, Intervention]:
    """Test how much accuracy depends on the order of the patches; without positions it does not."""
    return {"patches shuffled": shuffle_patches}
