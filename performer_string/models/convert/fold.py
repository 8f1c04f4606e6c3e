"""Fold bases into the projections permanently: for inference every separable encoding is then RoPE."""

from __future__ import annotations

import copy
from typing import cast

import torch

from performer_string.models.vit.model import ViT
from performer_string.position import SeparableEncoding
from performer_string.position.rotation import split_heads
from performer_string.utils.dtype import without_autocast


@torch.inference_mode(False)  # the copy may be used outside of inference mode
@torch.no_grad()
def fold(model: ViT) -> ViT:
    """Return a copy for inference, with W_Q and W_K replaced by B^T W_Q and B^T W_K in each layer.

    Its outputs are those of the model. Its encoding has no basis left to compute or apply. The model itself stays as it
    is. Encodings without a basis (RoPE, LieRE, absolute), rotations of features and a folded model are left as they
    are. A value map keeps the basis of its encoding. Parameters of a folded basis stay in it without a use. The weights
    of a folded model load into a folded model only.

    Args:
        model: model to fold.

    Returns:
        A ViT in evaluation mode.

    Raises:
        TypeError: something else than a ViT.
        ValueError: a projection that is more than its weight and bias, or is shared by layers.
    """
    if not isinstance(model, ViT):
        raise TypeError(f"fold takes a ViT, not a {type(model).__name__}.")
    encoding = model.encoding
    with without_autocast(model.norm.weight):
        basis = encoding.basis() if isinstance(encoding, SeparableEncoding) and not encoding.is_folded else None
    if basis is None or any(backend.rotates_features for backend in model.backends()):
        return copy.deepcopy(model).eval()
    if not all(attention.is_foldable() for attention in model.attentions()):
        raise ValueError(
            "fold needs plain projections of queries and keys, and one of this model has an adapter, a "
            "parametrization, pruning or a hook, or quantised weights: merge or remove it first, and fold "
            "before you quantise."
        )
    projections = [x for attention in model.attentions() for x in attention.qkv.parameters()]
    if len(set(map(id, projections))) < len(projections):
        raise ValueError("fold needs a projection for each layer, and two layers of this model share theirs.")
    folded = copy.deepcopy(model).eval()
    layers = len(folded.blocks)  # fewer than the encoding serves in a model that was pruned for features
    bases = [basis] * layers if encoding.layers == 1 else split_heads(basis, encoding.layers, 0)[:layers]
    for attention, layer_basis in zip(folded.attentions(), bases, strict=True):
        weight, bias = attention.folded_projection(layer_basis)
        attention.qkv.weight.copy_(weight)
        if bias is not None:
            attention.qkv.bias.copy_(bias)
    cast(SeparableEncoding, folded.encoding).mark_folded(folded.norm.weight)
    return folded
