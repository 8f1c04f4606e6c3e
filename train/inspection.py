"""Count the multiplications of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from performer_string import ViT, fold


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
    from torch.distributed.fsdp import FSDPModule  # slow to import

    device = "cpu" if vit.localities() and not isinstance(vit, FSDPModule) else "meta"
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
