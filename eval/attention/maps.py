"""Attention maps of one token: its row of the attention weights in each layer, or attention rollout over the layers.

Weights are the factors of the values in their sum. For linear attention they follow from the features,

    A_ij = phi(R q_i)^T phi(R k_j) exp(b_j) / sum_l phi(R q_i)^T phi(R k_l) exp(b_l),

with the logits b of the key gate. A distance decay multiplies them. Value maps change the values, and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string import ViT
from performer_string.layers.inspection import AttentionInputs, inspect_attention

QUERIES_AT_A_TIME = 256


def layers_of(vit: ViT, image: Tensor) -> list[AttentionInputs]:
    """Return the attention inputs of each layer for one image [C, H, W], with queries and keys rotated."""
    layers = inspect_attention(vit, image[None])
    assert len(layers) == len(vit.blocks)
    for layer in layers:
        layer.q, layer.k = layer.rotated()
    return layers


def attention_rows(layer: AttentionInputs, queries: slice, head: int | None = None) -> Tensor:
    """Return the weights of some queries in a layer.

    Args:
        layer: attention inputs of the layer, an item of `layers_of`.
        queries: slice of the N tokens, prefix tokens first.
        head: index of the head; None for the mean over heads.

    Returns:
        Weights, [n, N], in float32.
    """
    key_mask = layer.layout.mask
    weights = layer.backend.weights(layer.q[:, :, queries], layer.k, None, layer.key_bias, key_mask)  # [1, H, n, N]
    if layer.locality is not None:
        weights = layer.locality.modulate(weights, layer.layout, queries)
    return (weights[0].mean(0) if head is None else weights[0, head]).float()


def rollout(layers: Sequence[AttentionInputs], source: Tensor, head: int | None = None) -> Tensor:
    """Return attention rollout (Abnar and Zuidema, arXiv:2005.00928) from the output of each layer to the input.

    The attention of a layer and its residual sum are A' = (A + I) / 2, with rows that sum to one. The rollout of layer
    l is s^T A'_l ... A'_1 for a source s of its outputs. Only rows of A are in memory.

    Args:
        layers: attention inputs of all layers, from `layers_of`.
        source: share of each output token, [N]: 1 for a single token, or equal shares for the mean.
        head: index of the head in each layer; None for the mean over heads.

    Returns:
        Rollout from each layer, [layers, N].
    """
    flows = source.new_empty(0, len(source))  # the last layer comes first
    for layer in reversed(layers):
        flows = torch.cat([flows, source[None]])
        result = torch.zeros_like(flows)
        for start in range(0, len(source), QUERIES_AT_A_TIME):
            queries = slice(start, start + QUERIES_AT_A_TIME)
            weights = attention_rows(layer, queries, head)
            weights[:, queries] += torch.eye(len(weights), device=weights.device, dtype=weights.dtype)
            result += flows[:, queries] @ (weights / weights.sum(-1, keepdim=True))
        flows = result
    return flows.flip(0)


def token_of_patch(vit: ViT, grid: Sequence[int], place: Sequence[float]) -> int:
    """Return the index of the token whose patch contains a point of the image.

    Args:
        vit: the model.
        grid: number of patches along each axis.
        place: point as shares of the height and width, each in [0, 1].
    """
    row, column = (min(int(share * n), n - 1) for share, n in zip(place, grid, strict=True))
    return vit.num_prefix + row * grid[1] + column


def has_class_token(vit: ViT) -> bool:
    """Return whether a model classifies by a class token."""
    return vit.config.pool == "cls"


def output_source(vit: ViT, layer: AttentionInputs) -> Tensor:
    """Return the share of each token in the pooled output, [N]: 1 for the class token, or equal for all patches.

    Attention pooling is treated as a mean. Masked patches have no share.

    Args:
        vit: the model.
        layer: attention inputs of any layer, an item of `layers_of`.
    """
    source = torch.zeros(layer.k.shape[2], device=layer.k.device)
    if has_class_token(vit):
        source[0] = 1
        return source
    patches = source[vit.num_prefix :]
    patches += 1 if layer.layout.patch_mask is None else layer.layout.patch_mask[0]
    return source / patches.sum().clamp(min=1)


@torch.no_grad()
def attention_map(
    vit: ViT,
    layers: Sequence[AttentionInputs],
    grid: Sequence[int],
    kind: str,
    place: Sequence[float],
    head: int | None = None,
) -> Tensor:
    """Return the attention weights of all patches in each layer.

    Args:
        vit: the model.
        layers: attention inputs of all layers, from `layers_of`.
        grid: number of patches along each axis.
        kind: `query` (attention of the patch at `place`), `class` (of the class token) or `rollout`.
        place: point of the query as shares of the height and width.
        head: index of the head; None for the mean over heads.

    Returns:
        Maps, [layers, height, width].
    """
    if kind == "rollout":
        weights = rollout(layers, output_source(vit, layers[0]), head)
    else:
        index = 0 if kind == "class" else token_of_patch(vit, grid, place)
        weights = torch.cat([attention_rows(layer, slice(index, index + 1), head) for layer in layers])
    return weights[:, vit.num_prefix :].unflatten(-1, tuple(grid))  # [layers, N] -> [layers, height, width]
