"""Fold bases into the projections permanently: for inference every separable encoding is then RoPE."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from performer_string.models.convert.timm_attention import TimmAttention
from performer_string.models.vit.model import ViT
from performer_string.position import SeparableEncoding
from performer_string.position.rotation import split_heads
from performer_string.utils.dtype import without_autocast

Model = TypeVar("Model", bound=nn.Module)


@torch.inference_mode(False)  # the copy may be used outside of inference mode
@torch.no_grad()
def fold(model: Model) -> Model:
    """Return a copy for inference, with W_Q and W_K replaced by B^T W_Q and B^T W_K in each layer.

    Its outputs are those of the model. Its encoding has no basis left to compute or apply. The model itself stays as it
    is. Encodings without a basis (RoPE, LieRE, absolute), rotations of features and a folded model are left as they
    are. So are layers of `performerize` with norms of queries and keys, with separate projections, or with gates by
    queries. A value map keeps the basis of its encoding. Parameters of a folded basis stay in it without a use. The
    weights of a folded model load into a folded model only.

    Args:
        model: ViT, model of timm that `performerize` changed, or module that contains such models.

    Returns:
        A model of the same class, in evaluation mode.

    Raises:
        TypeError: a module without any of these.
        ValueError: a projection that is more than its weight and bias, or is shared by layers.
    """
    parts = parts_of(model)
    if not parts:
        raise TypeError(
            f"fold takes a ViT, a model that performerize changed, or a module with one of them inside, not a "
            f"{type(model).__name__}."
        )
    bases = [basis_of(part) for part in parts]
    folding = [part for part, basis in zip(parts, bases, strict=True) if basis is not None]
    check_projections([part for part in folding if isinstance(part, ViT)])
    folded = copy.deepcopy(model).eval()
    for part, basis in zip(parts_of(folded), bases, strict=True):
        if basis is None:
            continue
        if isinstance(part, TimmAttention):
            part.fold_basis(basis)
        else:
            fold_layers(part, basis)
    return folded


def parts_of(model: object) -> list[ViT | TimmAttention]:
    """Return the parts of a model that have an encoding and its projections."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [part for part in modules if isinstance(part, ViT | TimmAttention)]


def basis_of(part: ViT | TimmAttention) -> Tensor | None:
    """Return the basis to fold, [1 or parameter heads, d, d], or None where a part is left as it is."""
    encoding = part.encoding
    if not isinstance(encoding, SeparableEncoding) or encoding.is_folded:
        return None
    if isinstance(part, TimmAttention):
        stays = not part.is_foldable()
    else:
        stays = any(backend.rotates_features for backend in part.backends())
    with without_autocast(next(part.parameters())):
        return None if stays else encoding.basis()


def check_projections(vits: list[ViT]) -> None:
    """Raise a ValueError for a projection that is more than its weight and bias, or is shared by layers."""
    attentions = [attention for vit in vits for attention in vit.attentions()]
    if not all(attention.is_foldable() for attention in attentions):
        raise ValueError(
            "fold needs plain projections of queries and keys, and one of this model has an adapter, a "
            "parametrization, pruning or a hook, or quantised weights: merge or remove it first, and fold "
            "before you quantise."
        )
    projections = [x for attention in attentions for x in attention.qkv.parameters()]
    if len(set(map(id, projections))) < len(projections):
        raise ValueError("fold needs a projection for each layer, and two layers of this model share theirs.")


def fold_layers(vit: ViT, basis: Tensor) -> None:
    """Fold the basis of a ViT into its projections, in place."""
    encoding, layers = vit.encoding, len(vit.blocks)
    assert isinstance(encoding, SeparableEncoding)
    # Fewer layers than the encoding serves in a model that was pruned for features.
    bases = [basis] * layers if encoding.layers == 1 else split_heads(basis, encoding.layers, 0)[:layers]
    for attention, layer_basis in zip(vit.attentions(), bases, strict=True):
        weight, bias = attention.folded_projection(layer_basis)
        attention.qkv.weight.copy_(weight)
        if bias is not None:
            attention.qkv.bias.copy_(bias)
    encoding.mark_folded(vit.norm.weight)
