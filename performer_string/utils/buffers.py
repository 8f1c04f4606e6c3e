"""Buffers that a module computes from its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ComputedBuffers(nn.Module):
    """A module with buffers that are functions of its sizes: not saved, and computed again wherever the module goes.

    They have values after `to_empty`, or `load_state_dict(assign=True)`, of a module that was built on the meta device.
    They are never rounded to bf16 or fp16, and gain digits with `double()`. A frequency off by 2^-9 would be a quarter
    of a radian off at 128 patches.
    """

    computed_names: tuple[str, ...] = ()

    def computed_buffers(self) -> Mapping[str, Tensor]:
        """Return the values by name, on any device, in the best type that they can be computed in."""
        return {}

    def register_computed_buffers(self) -> None:
        """Register the buffers. Call it once, at the end of the constructor."""
        values = self.computed_buffers()
        self.computed_names = tuple(values)
        for name, value in values.items():
            least = torch.promote_types(torch.get_default_dtype(), torch.float32)
            self.register_buffer(name, value.to(least if value.is_floating_point() else value.dtype), persistent=False)

    def check_registered(self) -> None:
        """Raise a TypeError where `computed_buffers` gives tensors that were not registered."""
        missing = [name for name in self.computed_buffers() if name not in self.computed_names]
        if missing:
            raise TypeError(
                f"{type(self).__name__}: computed_buffers() gives {', '.join(missing)}, not registered: call "
                f"self.register_computed_buffers() at the end of the constructor."
            )

    def compute_buffers(self, device: torch.device | None = None) -> None:
        """Compute the values again, in their type but in float32 or better.

        Args:
            device: device to put them on; their present one by default.
        """
        with torch.inference_mode(False):  # no training could use a tensor of inference mode
            for name, value in self.computed_buffers().items():
                buffer = self.get_buffer(name)
                dtype = torch.promote_types(buffer.dtype, torch.float32) if value.is_floating_point() else value.dtype
                self.register_buffer(name, value.to(device or buffer.device, dtype), persistent=False)

    def move_buffers(self, device: torch.device) -> None:
        """Compute the values on this device, unless they are there."""
        if any(self.get_buffer(name).device != device for name in self.computed_names):
            self.compute_buffers(device)

    def fill_buffers(self, device: torch.device) -> None:
        """Compute values that are on the meta device while the weights are not, as where a tool put these in alone."""
        if any(p.is_meta for p in self.parameters(recurse=False)):
            return
        if any(self.get_buffer(name).is_meta for name in self.computed_names):
            self.compute_buffers(device)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        # `load_state_dict(assign=True)` fills a module of the meta device without a call of `_apply`.
        super()._load_from_state_dict(*arguments)
        self.fill_buffers(next((p.device for p in self.parameters() if not p.is_meta), torch.device("cpu")))

    def _apply(self, *arguments: Any, **options: Any) -> ComputedBuffers:
        before = [self.get_buffer(name) for name in self.computed_names]
        super()._apply(*arguments, **options)
        after = [self.get_buffer(name) for name in self.computed_names]
        if any(old is not new for old, new in zip(before, after, strict=True)):
            self.compute_buffers()
        return self


def place_computed_buffers(module: nn.Module, keys: Any = None) -> None:
    """Move computed buffers to the device of the nearest weights, after these were loaded.

    Args:
        module: the whole model.
        keys: missing and unexpected keys, which `register_load_state_dict_post_hook` passes; unused.
    """

    def place(part: nn.Module, device: torch.device) -> None:
        device = next((p.device for p in part.parameters()), device)
        if isinstance(part, ComputedBuffers) and device.type != "meta":
            part.move_buffers(device)
        for child in part.children():
            place(child, device)

    place(module, torch.device("meta"))
