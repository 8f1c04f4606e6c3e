"""What a fused kernel knows of a feature map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class FeatureForm:
    """What a fused kernel has to know of a feature map, in place of the map itself.

    Attributes:
        kind: `exponential`, phi_f(x) = exp(w_f x - square |x|^2), or `power`, phi_f(x) = relu(w_f x)^order. A common
            factor of all features is left out: it cancels in attention.
        weight: W, [H, rows, d], in float32 or better, with the scale of the logits in it.
        mirrored: the features are those of W and of -W, 2 rows in all.
        square: of the exponential.
        order: of the power.
    """

    kind: Literal["exponential", "power"]
    weight: Tensor
    mirrored: bool = False
    square: float = 0.0
    order: int = 1
