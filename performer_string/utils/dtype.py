"""Float32 or better, whatever a module or its inputs are cast to: for norms, angles, widths and sums of many."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 where it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
