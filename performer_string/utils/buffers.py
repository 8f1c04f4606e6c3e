"""Tensors a module computes and does not learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ComputedBuffers(nn.Module):
    """A module with buffers that are functions of its sizes: not saved, and computed again wherever the module goes.

    So they have values after `to_empty`, or `load_state_dict(assign=True)`, of a module built on the meta device, are
    never rounded to bf16 or fp16 (a frequency off by 2^-9 is a quarter of a radian 128 patches away), and gain digits
    with `double()`.
    """

    computed_names: tuple[str, ...] = ()

    def computed_buffers(self) -> Mapping[str, Tensor]:
        """The values by name, on any device, of the best type they can be computed in."""
        return {}

    def register_computed_buffers(self) -> None:
        """To be called once, at the end of the constructor."""
        values = self.computed_buffers()
        self.computed_names = tuple(values)
        for name, value in values.items():
            least = torch.promote_types(torch.get_default_dtype(), torch.float32)
            self.register_buffer(name, value.to(least if value.is_floating_point() else value.dtype), persistent=False)

    def compute(self, device: torch.device | None = None) -> None:
        """The values anew: where they are or on a device, in their type but in float32 at the least."""
        for name, value in self.computed_buffers().items():
            there = self.get_buffer(name)
            dtype = torch.promote_types(there.dtype, torch.float32) if value.is_floating_point() else value.dtype
            self.register_buffer(name, value.to(device or there.device, dtype), persistent=False)

    def settle(self, device: torch.device) -> None:
        """The values on this device; nothing where they are there."""
        if any(self.get_buffer(name).device != device for name in self.computed_names):
            self.compute(device)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """`load_state_dict(assign=True)` fills a module of the meta device without any move of it."""
        super()._load_from_state_dict(*arguments)
        if any(self.get_buffer(name).is_meta for name in self.computed_names):
            self.compute(next((p.device for p in self.parameters() if not p.is_meta), torch.device("cpu")))

    def _apply(self, *arguments: Any, **options: Any) -> ComputedBuffers:
        super()._apply(*arguments, **options)
        if self.computed_names:
            self.compute()
        return self


def place_computed_buffers(module: nn.Module, keys: Any = None) -> None:
    """After its weights are loaded: the constants of a module and its parts where its weights are.

    A part without weights of its own cannot know. A hook for `register_load_state_dict_post_hook`.
    """
    device = next(module.parameters()).device
    for part in module.modules():
        if isinstance(part, ComputedBuffers) and device.type != "meta":
            part.settle(device)
