"""A learned radial profile: a mixture of Gaussians of several widths, as a factor of the attention weights."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from performer_string.bias.base import Split
from performer_string.bias.decays import WINDOW_REACH, DistanceDecay, node_spacing
from performer_string.utils.dtype import full_precision


class RadialDecay(DistanceDecay):
    """A learned radial profile: lambda(r) = amplitude sum_g w_g exp(-|r|^2 / (2 s_g^2)), s_g = sigma / 2^(G - 1 - g).

    The weights w > 0 of a head sum to 1 and start equal; sigma is the widest scale. Positive mixtures of Gaussians are
    the radial profiles that are positive definite in every dimension (Schoenberg, 1938).

    Args:
        num_scales: number G of Gaussians. The other arguments are those of `DistanceDecay`.

    Raises:
        ValueError: a number of scales below 1, or as `DistanceDecay` raises.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        grid: Sequence[int] | None = None,
        num_scales: int = 4,
        sigma: float | Sequence[float] = 8.0,
        amplitude: float = 1.0,
        sigma_bounds: tuple[float, float] = (0.25, 64.0),
        max_amplitude: float = 2.0,
        normalised: bool = False,
        fixed: bool = False,
    ):
        super().__init__(
            num_heads,
            grid=grid,
            sigma=sigma,
            amplitude=amplitude,
            sigma_bounds=sigma_bounds,
            max_amplitude=max_amplitude,
            normalised=normalised,
            fixed=fixed,
        )
        if num_scales < 1:
            raise ValueError(f"num_scales must be positive, not {num_scales}.")
        self.num_scales = num_scales
        self.raw_shares = nn.Parameter(torch.zeros(num_heads, num_scales), requires_grad=not fixed)

    def scales(self) -> Tensor:
        """Return s_g / sigma, [G]."""
        powers = [2.0 ** (g + 1 - self.num_scales) for g in range(self.num_scales)]
        return full_precision(self.raw_shares).new_tensor(powers)

    def shares(self) -> Tensor:
        """Return the weights w, [H, G]."""
        return full_precision(self.raw_shares).softmax(-1)

    def log_profile(self, squares: Tensor) -> Tensor:
        """Return log sum_g w_g exp(-|r|^2 / (2 s_g^2))."""
        view = (-1, *[1] * (squares.ndim - 1))
        shares, scales = full_precision(self.raw_shares).log_softmax(-1).unbind(-1), self.scales().unbind()
        terms = [share.view(view) - squares / (2 * scale.square()) for share, scale in zip(shares, scales, strict=True)]
        return functools.reduce(torch.logaddexp, terms)

    def components(self) -> tuple[Tensor, Tensor]:
        """Return the Gaussians of the mixture, narrowest first: amplitudes [H, G], and widths [H, G] or [H, G, C]."""
        return self.components_of(self.amplitude()[:, None] * self.shares(), self.scales())

    def numerator_splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return each cut of the mixture: the narrow Gaussians through a window, the rest through nodes."""
        count = len(widths)
        return [
            Split(WINDOW_REACH * widths[g - 1] if g else None, node_spacing(widths[g], dim) if g < count else None, g)
            for g in range(count + 1)
        ]
