"""Inspect a model: inputs and outputs of its modules, its attention in every layer, and its multiplications."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from performer_string import ViT, fold
from performer_string.bias import RelativeBias
from performer_string.layers.backends import AttentionBackend
from performer_string.ops import reference
from performer_string.ops.layout import EVERY_TOKEN, TokenLayout
from performer_string.ops.rotary import rotate_pair
from performer_string.position.rotation import Rotation


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


@dataclass
class AttentionInputs:
    """Inputs of one layer's attention: q, k [B, H, N, d] with the basis folded in, before the rotation.

    `key_bias` is [B, H, N].
    """

    backend: AttentionBackend
    q: Tensor
    k: Tensor
    rotation: Rotation | None
    locality: RelativeBias | None = None
    layout: TokenLayout = EVERY_TOKEN
    key_bias: Tensor | None = None

    def of_image(self, index: int) -> AttentionInputs:
        """Return the inputs for one image of the batch."""
        bias = None if self.key_bias is None else self.key_bias[index : index + 1]
        return replace(self, q=self.q[index : index + 1], k=self.k[index : index + 1], key_bias=bias)

    def rotated(self) -> tuple[Tensor, Tensor]:
        """Return queries and keys after the rotation, [B, H, N, d] each.

        Raises:
            ValueError: attention that rotates features instead.
        """
        if self.backend.rotates_features:
            raise ValueError(
                "this evaluation looks at rotated queries and keys, and a model with linear-rotated-features rotates "
                "their features: take models with other attention."
            )
        return rotate_pair(self.q, self.k, self.rotation)

    def weights(self) -> Tensor:
        """Return the normalised attention weights, [B, H, N, N]."""
        return self.backend.weights(self.q, self.k, self.rotation, self.key_bias)

    def exact_weights(self) -> Tensor:
        """Return exact softmax weights of the same logits, [B, H, N, N]."""
        return reference.softmax_weights(*self.rotated(), key_bias=self.key_bias)

    def effective_weights(self) -> Tensor:
        """Return the weights of the values: the attention times its relative bias, if any, [B, H, N, N]."""
        return self.weights() if self.locality is None else self.locality.modulate(self.weights(), self.layout)


def inspect_attention(vit: ViT, images: Tensor) -> list[AttentionInputs]:
    """Run a model on images in evaluation mode and return the inputs of each layer's attention, in float32.

    A compiled model runs uncompiled here, since compiled code may not call the hooks that record its layers.
    """
    training = vit.training
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), record_calls(vit.backends()) as calls:
            vit.eval()(images)
    finally:
        vit.train(training)
    return [AttentionInputs(c.module, c.args[0].float(), c.args[1].float(), **c.kwargs) for c in calls]  # type: ignore[arg-type]


def is_sharded(vit: ViT) -> bool:
    """Return whether the weights of a model are sharded between processes."""
    from torch.distributed.fsdp import FSDPModule  # slow to import

    return isinstance(vit, FSDPModule)


def multiplications(vit: ViT, size: Sequence[int]) -> int | None:
    """Return the number of multiplications, each with an addition, of a folded model for one image.

    Values that are cached over images do not count. The count runs on the meta device, except for a relative bias,
    whose method of summation depends on its values.

    Args:
        vit: the model, which is copied.
        size: size of the image in pixels.

    Returns:
        Multiplications in matrix products, convolutions and attention; None where a part cannot be counted.
    """
    device = "cpu" if vit.localities() and not is_sharded(vit) else "meta"
    try:
        copied = fold(vit).to(device)
        image = torch.zeros(1, vit.config.in_channels, *size, device=device)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), copied.cached():
            copied(image)
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                copied(image)
    except (NotImplementedError, RuntimeError, ValueError):  # a user's own part, or hooks such as a profiler's
        return None
    return counter.get_total_flops() // 2
