"""Queries, keys and rotations of every layer of a model on some images, for diagnostics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from performer_string import ViT
from performer_string.bias import RelativeBias
from performer_string.layers.backends import EVERY_TOKEN, AttentionBackend
from performer_string.ops import reference
from performer_string.ops.layout import TokenLayout
from performer_string.ops.rotary import rotate_pair
from performer_string.position.rotation import Rotation


@dataclass
class Probe:
    """What one layer's attention was given: q, k [B, H, N, d] before the rotation, with the basis already folded in.

    The keys' bias is [B, H, N].
    """

    backend: AttentionBackend
    q: Tensor
    k: Tensor
    rotation: Rotation
    locality: RelativeBias | None = None
    layout: TokenLayout = EVERY_TOKEN
    key_bias: Tensor | None = None

    def of_image(self, index: int) -> Probe:
        bias = None if self.key_bias is None else self.key_bias[index : index + 1]
        return replace(self, q=self.q[index : index + 1], k=self.k[index : index + 1], key_bias=bias)

    def weights(self) -> Tensor:
        """The normalised attention, [B, H, N, N]."""
        return self.backend.weights(self.q, self.k, self.rotation, self.key_bias)

    def exact_weights(self) -> Tensor:
        """The exact softmax of the same logits, [B, H, N, N]."""
        return reference.softmax_weights(*rotate_pair(self.q, self.k, self.rotation), key_bias=self.key_bias)

    def effective_weights(self) -> Tensor:
        """What the values are summed with: the attention, under the locality where there is one, [B, H, N, N]."""
        return self.weights() if self.locality is None else self.locality.modulate(self.weights(), self.layout)


def probe_attention(vit: ViT, images: Tensor) -> list[Probe]:
    """Runs the model on images and returns what each layer's attention was given, in float32."""
    probes: list[Probe] = []

    def keep(module: AttentionBackend, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        q, k = args[0].float(), args[1].float()
        probes.append(Probe(module, q, k, **kwargs))

    handles = [backend.register_forward_pre_hook(keep, with_kwargs=True) for backend in vit.backends()]
    training = vit.training
    try:
        with torch.no_grad():
            vit.eval()(images)
    finally:
        vit.train(training)
        for handle in handles:
            handle.remove()
    return probes
