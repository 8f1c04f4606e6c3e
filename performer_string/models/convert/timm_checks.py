"""Checks of a Vision Transformer of timm by `performerize`, before it changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from performer_string.models.convert.timm_attention import PatchGrid, TimmAttention
from performer_string.models.vit.model import ViT
from performer_string.position.grid import PositionMode


def check_width(attention: Any, layer: int) -> None:
    """Raise a ValueError where the heads are not as wide as the tokens, which a value map needs."""
    width, heads = attention.proj.out_features, attention.num_heads * attention.head_dim
    if heads != width:
        raise ValueError(
            f"a value map needs heads that are together as wide as the tokens: block {layer} has "
            f"{attention.num_heads} of width {attention.head_dim}, and tokens of width {width}."
        )


def import_timm() -> Any:
    """Return timm.

    Raises:
        ImportError: timm is missing.
    """
    try:
        import timm
    except ImportError as error:
        raise ImportError("performerize takes models of timm: pip install 'timm>=1.0.26'.") from error
    return timm


def check_model(model: nn.Module, layers: Sequence[int] | None) -> list[int]:
    """Return the indices of the blocks to change.

    Raises:
        ValueError: a model without blocks, attention of another kind or with dropout, or a place that does not exist.
    """
    timm = import_timm()
    kinds = (timm.layers.Attention, timm.layers.AttentionRope, timm.models.eva.EvaAttention)
    kind, blocks = type(model).__name__, getattr(model, "blocks", None)
    if isinstance(model, ViT):
        raise ValueError(
            f"performerize takes models of timm, not a {kind} of this library: build another by "
            f'ViT(dataclasses.replace(model.config, attention="linear")), and load the weights with strict=False.'
        )
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not len(blocks):
        inner = " Give it the model inside: performerize(model.model, ...)." if hasattr(model, "model") else ""
        raise ValueError(
            f"performerize takes a ViT of timm with `blocks`, which {type(model).__module__}.{kind} does not have."
            f"{inner} In models of other libraries put MultiheadAttention in place of nn.MultiheadAttention."
        )
    if layers is not None and not isinstance(layers, Sequence):
        raise ValueError(f"layers must hold indices of blocks, as [0, 1], not {layers!r}.")
    count = len(blocks)
    if outside := [layer for layer in layers or () if not -count <= layer < count]:
        raise ValueError(f"{kind} has {count} blocks, counted from 0: there is no block {outside[0]}.")
    indices = [range(count)[layer] for layer in (range(count) if layers is None else layers)]
    for layer in indices:
        attention = getattr(blocks[layer], "attn", None)
        if isinstance(attention, TimmAttention):
            raise ValueError(f"block {layer} of {kind} was changed by performerize before: begin with a model of timm.")
        if type(attention) not in kinds:
            known = ", ".join(each.__name__ for each in kinds)
            own = type(attention)
            found = "no `attn`" if attention is None else f"the attention {own.__module__}.{own.__name__}"
            raise ValueError(f"block {layer} of {kind} has {found}; known are {known}.")
        if cast(Any, attention).attn_drop.p:
            raise ValueError(
                f"block {layer} of {kind} has dropout of attention weights, which linear attention does not have: "
                f"build the model with attn_drop_rate=0."
            )
    return list(dict.fromkeys(indices))


def check_measured_images(model: nn.Module, images: object) -> None:
    """Raise a ValueError unless images to measure errors on are None, or finite floats [B, channels, height, width]."""
    if images is None:
        return
    if not isinstance(images, Tensor):
        raise ValueError(f"images must be a tensor, not a {type(images).__name__}.")
    projection = getattr(getattr(model, "patch_embed", None), "proj", None)
    channels = getattr(projection, "in_channels", "channels")
    if images.ndim != 4 or not len(images) or channels not in ("channels", images.shape[1]):
        raise ValueError(f"images must be one or more, [B, {channels}, height, width], not {list(images.shape)}.")
    if not images.is_floating_point():
        raise ValueError(f"images must be floats, normalised as in training, not {images.dtype}.")
    if not torch.isfinite(images).all():
        raise ValueError("images must be finite: they hold NaN or infinity, and so would every error.")


def grid_of(model: Any, mode: PositionMode) -> PatchGrid:
    """Return the grid of the patches of a model.

    Raises:
        ValueError: a model that drops patches, so that tokens lose their places.
    """
    if isinstance(getattr(model, "patch_drop", None), nn.Module) and not isinstance(model.patch_drop, nn.Identity):
        raise ValueError(
            "an encoding, a locality or a value map needs all patches: build the model with patch_drop_rate=0."
        )
    patch: Any = getattr(model, "patch_embed", None)
    if getattr(patch, "grid_size", None) is None:
        raise ValueError(
            f"an encoding, a locality or a value map needs the grid that the model was built for, in its patch_embed: "
            f"give it an img_size, or take another model where {type(model).__name__} has none."
        )
    return PatchGrid(tuple(patch.grid_size), mode, model.num_prefix_tokens)
