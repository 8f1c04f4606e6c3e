"""Rotary encodings: the identity basis, with fixed or learned plane frequencies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from performer_string.position.base import SeparableEncoding, Sizes
from performer_string.position.frequencies import axial_frequencies, mixed_frequencies, plane_generators, planes_of


class RoPE(SeparableEncoding):
    """Axial RoPE: the planes are shared out over the axes, theta_p = base^(-t/n) r_axis(p), nothing is learned.

    Source: Heo et al., arXiv:2403.13298, section 3.1 (base 100 for images); Su et al., arXiv:2104.09864.
    """

    name = "rope"
    omega: Tensor

    def __init__(
        self,
        sizes: Sizes,
        *,
        base: float = 100.0,
    ):
        super().__init__(sizes, share_heads=True)
        self.base = base
        self.register_computed_buffers()

    def computed_buffers(self) -> dict[str, Tensor]:
        planes = planes_of(self.head_dim, self.name)
        return {"omega": axial_frequencies(planes, self.coord_dim, self.base, torch.float64)}

    def frequencies(self) -> Tensor:
        return self.omega

    def generators(self) -> Tensor:
        return self.all_heads(plane_generators(self.omega, self.head_dim))


class VisionLLaMA(RoPE):
    """Axial RoPE with the language models' base 10000: the baseline of LieRE (arXiv:2406.10322, section 5.1).

    Source: Chu et al., arXiv:2403.00522, section 3. Its rescaling of positions to an anchor resolution is the
    position mode `"interpolate"`, which is chosen at the model and not here.
    """

    name = "visionllama"

    def __init__(
        self,
        sizes: Sizes,
        *,
        base: float = 10000.0,
    ):
        super().__init__(sizes, base=base)


class RoPEMixed(SeparableEncoding):
    """RoPE-Mixed: theta_p = sum_k Omega_kp r_k with learned Omega, for each head.

    Source: Heo et al., arXiv:2403.13298, section 3.2 (its code starts from base 10 and random directions).
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        base: float = 10.0,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        planes = planes_of(sizes.head_dim, "rope-mixed")
        self.omega = nn.Parameter(mixed_frequencies(self.parameter_heads, planes, sizes.coord_dim, base))

    def frequencies(self) -> Tensor:
        return self.omega

    def generators(self) -> Tensor:
        return self.all_heads(plane_generators(self.omega, self.head_dim))
