"""Random features of a model that starts from another one, expressed in the basis of its encoding."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from performer_string.feature_maps.random import RandomFeatures
from performer_string.models.config import ViTConfig
from performer_string.models.vit.build import build_position_encoding
from performer_string.models.vit.model import ViT
from performer_string.position import Encoding, SeparableEncoding
from performer_string.position.rotation import PlaneRotation, split_heads


def layer_bases(encoding: Encoding, layers: int, like: Tensor) -> list[Tensor]:
    """Return the orthogonal basis B of each layer, [1 or H, d, d] in float64; the identity where there is none."""
    eye = torch.eye(like.shape[-1], dtype=torch.float64, device=like.device)[None]
    if not isinstance(encoding, SeparableEncoding) or encoding.rotation_class is not PlaneRotation:
        return [eye] * layers
    basis = None if encoding.is_folded else encoding.basis()
    if basis is None:
        return [eye] * layers
    basis = encoding.tell_layers_apart(basis, 0).to(eye)
    return [basis] * layers if encoding.layers == 1 else split_heads(basis, encoding.layers, 0)


def keep_draws(
    model: ViT, source: ViTConfig, grid: Sequence[int], weights: Mapping[str, Any], taken: Container[str]
) -> None:
    """Express random features that a model has taken from one with another encoding in its own basis (`change_basis`).

    Args:
        model: model with the features.
        source: configuration of the other model.
        grid: number of patches along each axis of a training image of the other model.
        weights: weights of the other model, by name.
        taken: names of the weights that the model has taken.
    """
    names = [f"blocks.{layer}.attention.backend.phi.projection" for layer in range(len(model.blocks))]
    layers = [layer for layer, name in enumerate(names) if name in taken]
    if not layers or source.query_width != model.config.query_width:
        return
    encoding, prefix = build_position_encoding(source, tuple(grid), 0), "encoding."
    named = {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}
    encoding.load_state_dict(named, strict=False)
    change_basis(model, encoding, layers)


@torch.no_grad()
def change_basis(model: ViT, source: Encoding, layers: list[int]) -> None:
    """Replace random projections W by W B_s^T B, in place, with B_s the basis of another encoding and B the model's.

    Features are phi(W Rot(theta) B^T x), since rotations leave out the factor B on the left. So W sees queries and keys
    in the basis of the encoding, and weights of a model with another basis would meet another draw. With the new W, a
    model whose rotations start at zero has the outputs of the model that it starts from, up to rounding. B_s^T B is
    orthogonal, so that W is as good a draw as before.

    Args:
        model: model with the projections of the other model.
        source: encoding of that model, with its weights.
        layers: indices of the layers whose projections are those of the other model.
    """
    for layer in layers:
        backend = model.backends()[layer]
        phi = getattr(backend, "phi", None)
        if backend.rotates_features or not isinstance(phi, RandomFeatures):
            continue
        old, new = (layer_bases(each, len(model.blocks), phi.projection)[layer] for each in (source, model.encoding))
        if not torch.equal(old, new):
            phi.projection.copy_(phi.projection.double() @ old.mT @ new)  # [H, m, d]
