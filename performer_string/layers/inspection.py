"""The queries, keys and weights of attention in every layer of a model, for analysis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from performer_string.bias import RelativeBias
from performer_string.layers.backends import AttentionBackend
from performer_string.ops import reference
from performer_string.ops.layout import EVERY_TOKEN, TokenLayout
from performer_string.ops.rotary import rotate_pair
from performer_string.position.rotation import Rotation, one_sample


@dataclass
class Call:
    """Arguments of a module's forward pass, and its output."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@contextmanager
def record_calls(modules: Iterable[nn.Module]) -> Iterator[list[Call]]:
    """Record every forward pass of some modules within a block, in the list that this yields."""
    calls: list[Call] = []
    with ExitStack() as stack:
        for module in modules:
            hook = module.register_forward_hook(lambda *call: calls.append(Call(*call)), with_kwargs=True)
            stack.callback(hook.remove)
        yield calls


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within a block, and each of its modules back into its own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@dataclass
class AttentionInputs:
    """What the attention of one layer gets, and the weights that follow.

    Attributes:
        backend: attention backend of the layer. Its `phi` is the feature map, under linear attention.
        q, k: queries [B, H, N, d] and keys [B, H, M, d] before their rotation, with the basis folded in.
        rotation: rotation of queries and keys without its basis, Rot(Omega r); None where there is none, or where the
            layer has applied it before.
        locality: relative bias of the layer.
        layout: positions of the tokens, prefix tokens first, and the mask of those that take part.
        key_bias: logits of `key_gate`, which are added for each key, [B, H, M].
    """

    backend: AttentionBackend
    q: Tensor
    k: Tensor
    rotation: Rotation | None = None
    locality: RelativeBias | None = None
    layout: TokenLayout = EVERY_TOKEN
    key_bias: Tensor | None = None

    def of_image(self, index: int) -> AttentionInputs:
        """Return the inputs for one image of the batch, with positions and a rotation of its own if it has these."""
        one, layout = slice(index, index + 1), self.layout
        bias = None if self.key_bias is None else self.key_bias[one]
        rotation = None if self.rotation is None else self.rotation.of_sample(index)
        positions, mask, centre = (
            None if x is None else one_sample(x, index, dims)
            for x, dims in ((layout.positions, 2), (layout.mask, 1), (layout.centre, 2))
        )
        layout = layout.replace(positions=positions, mask=mask, centre=centre)
        return replace(self, q=self.q[one], k=self.k[one], rotation=rotation, key_bias=bias, layout=layout)

    def rotated(self) -> tuple[Tensor, Tensor]:
        """Return queries [B, H, N, d] and keys [B, H, M, d] after the rotation, without the left basis.

        Raises:
            ValueError: attention that rotates features instead.
        """
        if self.backend.rotates_features:
            raise ValueError(
                "this looks at rotated queries and keys, and a model with linear-rotated-features rotates their "
                "features: take models with other attention."
            )
        return rotate_pair(self.q, self.k, self.rotation)

    def weights(self) -> Tensor:
        """Return the normalised attention weights before any relative bias, [B, H, N, M]."""
        return self.backend.weights(self.q, self.k, self.rotation, self.key_bias, self.layout.mask)

    def exact_weights(self) -> Tensor:
        """Return exact softmax weights of the same logits, [B, H, N, M]."""
        scale = self.backend.logit_scale
        return reference.softmax_weights(*self.rotated(), scale, key_mask=self.layout.mask, key_bias=self.key_bias)

    def effective_weights(self) -> Tensor:
        """Return the weights of the values: the attention with its relative bias, if any, [B, H, N, M]."""
        return self.weights() if self.locality is None else self.locality.modulate(self.weights(), self.layout)


def inspect_attention(model: nn.Module, *inputs: Any, **options: Any) -> list[AttentionInputs]:
    """Run a model in evaluation mode, without gradients, and return what the attention of each layer gets.

    A compiled model runs uncompiled here, since compiled code may not call the hooks that record its layers. A value
    map is no part of the weights. Weights take N x M numbers for each head of each image.

    Args:
        model: a `ViT`, or any module with layers of this library: `SelfAttention`, `MultiheadAttention`,
            `PerformerSelfAttention` or a backend of `build_attention`.
        inputs, options: arguments of the model, as images [B, channels, height, width].

    Returns:
        An item for each call of an attention backend, in their order; queries and keys are in float32 or better.

    Raises:
        ValueError: a model whose attention is not of this library, or a list of images of several sizes.
    """
    backends = [module for module in model.modules() if isinstance(module, AttentionBackend)]
    eager = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), evaluation_mode(model), eager, record_calls(backends) as calls:
        model(*inputs, **options)
    if not calls:
        raise ValueError(
            f"{type(model).__name__} has called no attention layer of this library. Where it calls linear_attention, "
            f"the weights are its outputs for the values torch.eye(M).expand(B, H, M, M)."
        )
    if any(call.kwargs.get("layout", EVERY_TOKEN).lengths is not None for call in calls):
        raise ValueError(
            "images of several sizes are packed: give one image at a time, or **batch_images(model, images)."
        )
    exact = [torch.promote_types(call.args[0].dtype, torch.float32) for call in calls]
    return [
        AttentionInputs(call.module, call.args[0].to(dtype), call.args[1].to(dtype), **call.kwargs)  # type: ignore[arg-type]
        for call, dtype in zip(calls, exact, strict=True)
    ]
