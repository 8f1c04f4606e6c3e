"""What is computed in float32 whatever a module or its inputs are cast to: norms, angles, widths, sums of many."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """x in float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
