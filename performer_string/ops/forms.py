"""Descriptions of feature maps for fused kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class FeatureForm:
    """Equation and weight of a feature map, as `FeatureMap.form` returns them.

    A factor that all features share is left out, because it cancels in attention.

    Attributes:
        kind: equation: `exponential` for phi_f(x) = exp(w_f x - square |x|^2), or `power` for phi_f(x) =
            relu(w_f x)^order.
        weight: weight W, [H, m, d], in float32 or better, with the scale of the logits in it.
        square: coefficient of |x|^2 in the exponential.
        order: exponent of the power.
    """

    kind: Literal["exponential", "power"]
    weight: Tensor
    square: float = 0.0
    order: int = 1


@dataclass(frozen=True)
class PolynomialKernel:
    """Kernel (s q^T k)^2, or 1 + s q^T k + (s q^T k)^2 / 2, as `FeatureMap.polynomial_kernel` returns it.

    Attributes:
        scale: scale s of the logits.
        lower: whether the kernel has the lower orders.
    """

    scale: float
    lower: bool
