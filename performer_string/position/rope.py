"""Rotary encodings: the identity basis, with fixed or learned plane frequencies."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from performer_string.position.base import Sizes
from performer_string.position.frequencies import axial_frequencies, mixed_frequencies, num_planes, plane_generators
from performer_string.position.separable import SeparableEncoding
from performer_string.utils.registry import choose
from performer_string.utils.validation import check_not_negative

Start = Literal["mixed", "uniform"]
Table = Literal["chu", "liere"]


class RoPE(SeparableEncoding):
    """Axial RoPE with fixed frequencies, theta_p = base^(-t / n) r_axis(p) for plane t of the n planes of an axis.

    Source: Heo et al., arXiv:2403.13298, section 3.1 (base 100 for images); Su et al., arXiv:2104.09864.

    Args:
        sizes: sizes of the attention that the encoding serves.
        base: base of the geometric sequence of frequencies.

    Raises:
        ValueError: an odd head width, fewer planes than axes, or a base that is not positive.
    """

    name = "rope"
    inclusive = False  # whether the slowest plane of an axis has the frequency 1 / base
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
        """Return Omega, [1, C, P], in radians per patch."""
        planes = num_planes(self.head_dim, self.name)
        return {"omega": axial_frequencies(planes, self.coord_dim, self.base, torch.float64, self.inclusive)}

    def frequencies(self) -> Tensor:
        """Return Omega, [1, C, P], in radians per patch."""
        return self.omega

    def generators(self) -> Tensor:
        """Return the plane generators, [layers H, C, d, d]."""
        return self.all_heads(plane_generators(self.omega, self.head_dim))


class VisionLLaMA(RoPE):
    """Axial RoPE with base 10000, that of language models: the baseline of LieRE (arXiv:2406.10322, section 5.1).

    The source rescales positions to an anchor resolution. Here that is the position mode `"interpolate"` of the model.
    Source: Chu et al., arXiv:2403.00522, section 3.

    Args:
        sizes: sizes of the attention that the encoding serves.
        base: base of the geometric sequence of the frequencies `chu`.
        frequencies: kind of frequencies: `chu` as in the source; or `liere` as in LieRE's code, exp(-4 t / (n - 1)),
            for positions in the unit `image`: at most a radian across a training image.

    Raises:
        ValueError: as `RoPE` raises.
    """

    name = "visionllama"
    without_effect: ClassVar = {"base": ("frequencies", ("liere",))}

    def __init__(
        self,
        sizes: Sizes,
        *,
        base: float = 10000.0,
        frequencies: Table = "chu",
    ):
        choose("frequencies of visionllama", frequencies, Table)
        self.inclusive = frequencies == "liere"
        super().__init__(sizes, base=math.exp(4) if self.inclusive else base)


class RoPEMixed(SeparableEncoding):
    """RoPE-Mixed, theta_p = sum_k Omega_kp r_k with learned frequencies Omega for each head.

    Source: Heo et al., arXiv:2403.13298, section 3.2 (its code starts from base 10 and random directions).

    Args:
        sizes: sizes of the attention that the encoding serves.
        base: base of the initial frequencies with the start `mixed`.
        start: initial frequencies: `mixed` as in the source; or `uniform` between 0 and init_scale, as in LieRE's
            comparison (arXiv:2406.10322, section 5: LieRE with blocks of 2).
        init_scale: upper bound of the frequencies of `uniform`, in radians per patch; 2 pi in LieRE.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: an odd head width, a base that is not positive, or an init_scale below 0.
    """

    without_effect: ClassVar = {"base": ("start", ("uniform",)), "init_scale": ("start", ("mixed",))}

    def __init__(
        self,
        sizes: Sizes,
        *,
        base: float = 10.0,
        start: Start = "mixed",
        init_scale: float = 2 * math.pi,
        share_heads: bool = False,
    ):
        super().__init__(sizes, share_heads=share_heads)
        planes = num_planes(sizes.head_dim, "rope-mixed")
        check_not_negative("init_scale of rope-mixed", init_scale)
        choose("start of rope-mixed", start, Start)
        if start == "uniform":
            omega = init_scale * torch.rand(self.parameter_heads, sizes.coord_dim, planes)
        else:
            omega = mixed_frequencies(self.parameter_heads, planes, sizes.coord_dim, base)
        self.omega = nn.Parameter(omega)

    def frequencies(self) -> Tensor:
        """Return Omega, [parameter_heads, C, P], in radians per patch."""
        return self.omega

    def generators(self) -> Tensor:
        """Return the plane generators, [layers H, C, d, d]."""
        return self.all_heads(plane_generators(self.omega, self.head_dim))
