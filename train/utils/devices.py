"""The device of a training or an evaluation: the CPU, an NVIDIA or AMD GPU, or another one that torch knows."""

from __future__ import annotations

import torch


def synchronize(device: torch.device) -> None:
    """Wait until a device has done its work. On the CPU it always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
