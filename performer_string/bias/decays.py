"""Decays with the distance: a factor of the weights after normalisation, or a bias of the logits.

    o_i = sum_j A_ij lambda(p_i - p_j) v_j

with A the normalised attention (softmax or linear) and lambda a decay for each head. Source: RiemannFormer,
arXiv:2506.07405 (locality focusing). With `normalised` the denominator has lambda too, as in ALiBi (arXiv:2108.12409),
whose bias -|i - j| / s is the decay `exponential`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.bias.base import RelativeBias, Split
from performer_string.bias.widths import bounded_width, raw_width
from performer_string.utils.dtype import full_precision

# Radius of a window over a Gaussian, in standard deviations: what lies outside is below 0.1 % of the sum.
WINDOW_REACH = 3.5


class DistanceDecay(RelativeBias):
    """A decay lambda(r) = amplitude f(|r| / sigma), with sigma and amplitude learned for each head within bounds.

    On a grid each head is summed over a window or through coarse nodes, whichever is predicted to cost less. Time and
    memory are linear in N. Outputs are off by less than 0.1 % through a window, and by some 3 % through nodes. For
    sharp attention with the decay `exponential`, a token's weight of itself is up to 16 % too low. Outputs are then 2
    to 4 % off.

    Normalised, a decay always goes through a window, up to where lambda is 2.5e-11. The reason is that keys close to a
    query may have weights so small that distant keys decide. The error is below 0.1 % where close keys weigh at least
    1e-7 of the distant ones. A query with no key within the window has the output zero.

    Args:
        num_heads: H.
        sigma: at the start, in patches of the training grid.
        amplitude: at the start, below `max_amplitude`.
        sigma_bounds: sigma stays between them: sigma = low (high / low)^s with s in (0, 1).
        max_amplitude: the bound of the amplitude.
        normalised: whether the denominator has the decay too. Then there is no amplitude, which would cancel.
        fixed: nothing of the decay is learned.

    Raises:
        ValueError: an initial value out of its bounds, infinite bounds, or options of an amplitude if normalised.
    """

    CUTOFF = 7.0  # in widths of the widest component: lambda is below 2.5e-11 from here on

    def __init__(
        self,
        num_heads: int,
        *,
        sigma: float = 4.0,
        amplitude: float = 1.0,
        sigma_bounds: tuple[float, float] = (0.25, 64.0),
        max_amplitude: float = 2.0,
        normalised: bool = False,
        fixed: bool = False,
    ):
        super().__init__(num_heads, normalised)
        self.sigma_bounds = sigma_bounds
        raw_sigma = raw_width(sigma, sigma_bounds)
        if not 0 < amplitude < max_amplitude < math.inf:
            raise ValueError(
                f"amplitude has to lie between 0 and max_amplitude={max_amplitude}, not {amplitude}; both finite."
            )
        if normalised and (amplitude, max_amplitude) != (1.0, 2.0):
            raise ValueError("a normalised decay has no amplitude, which would cancel: leave out its options.")
        self.max_amplitude = max_amplitude
        self.raw_sigma = nn.Parameter(raw_sigma.repeat(num_heads), requires_grad=not fixed)
        raw_amplitude = torch.tensor(amplitude / max_amplitude).logit().repeat(num_heads)
        self.raw_amplitude = None if normalised else nn.Parameter(raw_amplitude, requires_grad=not fixed)

    def sigma(self) -> Tensor:
        """Return sigma in patches, [H]."""
        return bounded_width(self.raw_sigma, self.sigma_bounds)

    def log_amplitude(self) -> Tensor:
        """Return the logarithm of the amplitude, [H], which is finite where the amplitude underflows."""
        if self.raw_amplitude is None:
            return torch.zeros_like(full_precision(self.raw_sigma))
        return math.log(self.max_amplitude) + F.logsigmoid(full_precision(self.raw_amplitude))

    def amplitude(self) -> Tensor:
        """Return the amplitude, [H]."""
        return self.log_amplitude().exp()

    def learned(self) -> dict[str, Tensor]:
        """Return `sigma`, and `amplitude` unless normalised, [H] each."""
        sigma = {"sigma": self.sigma()}
        return sigma if self.normalised else {**sigma, "amplitude": self.amplitude()}

    def log_profile(self, squares: Tensor) -> Tensor:
        """Return log f of |r|^2 / sigma^2, [H, ...] to the same."""
        raise NotImplementedError

    def log_of_offsets(self, offsets: Tensor) -> Tensor:
        """Return log lambda(r) = log amplitude + log f(|r| / sigma): offsets [..., C] -> [H, ...]."""
        view = (-1, *[1] * (offsets.ndim - 1))
        squares = offsets.square().sum(-1) / self.sigma().square().view(view)
        return self.log_amplitude().view(view) + self.log_profile(squares)

    def numerator_splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return the `splits` of a decay that is in the numerator only."""
        raise NotImplementedError

    def splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return `numerator_splits`, or a window up to `CUTOFF` if normalised."""
        if not self.normalised:
            return self.numerator_splits(widths, dim)
        return [Split(self.CUTOFF * widths[-1], None, len(widths))]


def node_spacing(width: float, dim: int) -> float:
    """Return the distance of the nodes under a Gaussian of this width, both in patches.

    It is half the width, and less in three dimensions, for the same error of 3 %. The error of each axis grows with the
    square of the spacing. That of the sum grows with the root of the dimension.
    """
    return width / 2 * min(1.0, (2 / dim) ** 0.25)


class GaussianDecay(DistanceDecay):
    """A Gaussian decay, lambda(r) = amplitude exp(-|r|^2 / (2 sigma^2))."""

    def log_profile(self, squares: Tensor) -> Tensor:
        """Return -|r|^2 / (2 sigma^2)."""
        return -squares / 2

    def components(self) -> tuple[Tensor, Tensor]:
        """Return the decay itself, of amplitude and width [H, 1]."""
        return self.amplitude()[:, None], self.sigma()[:, None]

    def numerator_splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return a window of 3.5 sigma, or nodes half a sigma apart."""
        (sigma,) = widths
        return [Split(WINDOW_REACH * sigma, None, 1), Split(None, node_spacing(sigma, dim), 0)]


class ExponentialDecay(DistanceDecay):
    """An exponential decay, lambda(r) = amplitude exp(-|r| / sigma).

    Through nodes it is a sum of four Gaussians, fitted once, at an error of 1 to 2 %. Nodes lie sigma / 4 apart. They
    lie sigma / 2 apart where a window of radius sigma / 2 takes the narrowest Gaussian and the kink at 0. A window
    alone needs a radius of 9 sigma.

    Where sigma is above the grid's size, all offsets are close to the kink, where the Gaussians sum to 0.905. Through
    nodes alone outputs are within the bound up to a sigma of twice the grid's side. They are 3 % low at four times and
    9 % low far above, as under a smaller amplitude. The gradient of sigma is up to a quarter off.
    """

    CUTOFF = 24.6 / 2.1
    # Fitted to exp(-x) on 0.1 <= x <= 8 by non-negative least squares with the weight x.
    WIDTHS = (0.25, 0.6, 1.1, 2.1)
    WEIGHTS = (0.2256, 0.2563, 0.3057, 0.1174)

    def log_profile(self, squares: Tensor) -> Tensor:
        """Return -|r| / sigma."""
        is_zero = squares == 0  # the root has no gradient at 0
        return torch.where(is_zero, 0.0, -torch.where(is_zero, 1.0, squares).sqrt())

    def components(self) -> tuple[Tensor, Tensor]:
        """Return the four Gaussians of the fit, [H, 4] each."""
        amplitude, sigma = self.amplitude()[:, None], self.sigma()[:, None]
        return amplitude * amplitude.new_tensor(self.WEIGHTS), sigma * sigma.new_tensor(self.WIDTHS)

    def numerator_splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return a window alone, nodes alone, or a window with the narrowest Gaussian and nodes with the others."""
        sigma = widths[0] / self.WIDTHS[0]
        return [
            Split(9 * sigma, None, len(widths)),
            Split(None, node_spacing(sigma / 2, dim), 0),
            Split(sigma / 2, node_spacing(sigma, dim), 1),
        ]


class RadialDecay(DistanceDecay):
    """A learned radial profile: lambda(r) = amplitude sum_g w_g exp(-|r|^2 / (2 s_g^2)), s_g = sigma / 2^(G - 1 - g).

    The weights w > 0 of a head sum to 1 and start equal; sigma is the widest scale. Positive mixtures of Gaussians are
    the radial profiles that are positive definite in every dimension (Schoenberg, 1938).

    Args:
        num_scales: G. The other arguments are those of `DistanceDecay`.

    Raises:
        ValueError: as `DistanceDecay`, or a number of scales below 1.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_scales: int = 4,
        sigma: float = 8.0,
        amplitude: float = 1.0,
        sigma_bounds: tuple[float, float] = (0.25, 64.0),
        max_amplitude: float = 2.0,
        normalised: bool = False,
        fixed: bool = False,
    ):
        super().__init__(
            num_heads,
            sigma=sigma,
            amplitude=amplitude,
            sigma_bounds=sigma_bounds,
            max_amplitude=max_amplitude,
            normalised=normalised,
            fixed=fixed,
        )
        if num_scales < 1:
            raise ValueError(f"num_scales has to be positive, not {num_scales}.")
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
        """Return the Gaussians of the mixture, narrowest first, [H, G] each."""
        return self.amplitude()[:, None] * self.shares(), self.sigma()[:, None] * self.scales()

    def numerator_splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return each cut of the mixture: the narrow Gaussians through a window, the rest through nodes."""
        count = len(widths)
        return [
            Split(WINDOW_REACH * widths[g - 1] if g else None, node_spacing(widths[g], dim) if g < count else None, g)
            for g in range(count + 1)
        ]
