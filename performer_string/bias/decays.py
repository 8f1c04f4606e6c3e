"""Decays with the distance: a factor of the weights after normalisation, or a bias of the logits.

    o_i = sum_j A_ij lambda(p_i - p_j) v_j

with A the normalised attention (softmax or linear) and lambda a decay for each head. Source: locality focusing of
RiemannFormer, arXiv:2506.07405, section 2.4, for the Gaussian. Other decays, and a sigma for each axis, are this
project's. With `normalised` the denominator has lambda too, as in ALiBi (arXiv:2108.12409), whose bias -|i - j| / s is
the decay `exponential`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.bias.base import RelativeBias, Split
from performer_string.bias.widths import bounded_width, check_axes, raw_width
from performer_string.utils.dtype import angle_dtype, full_precision

# Radius of a window over a Gaussian, in standard deviations: the part outside is below 0.1 % of the sum.
WINDOW_REACH = 3.5


class DistanceDecay(RelativeBias):
    """A decay lambda(r) = amplitude f(|r| / sigma), with sigma and amplitude learned for each head within bounds.

    With a sigma for each axis, |r| / sigma is the length of the vector (r_c / sigma_c).

    On a grid each head is summed over a window or through coarse nodes, whichever is predicted to cost less. Time and
    memory are linear in N. Outputs are off by less than 0.1 % through a window, and by some 3 % through nodes. For
    sharp attention with the decay `exponential`, the weight of a token on itself is up to 16 % too low. Outputs are
    then 2 to 4 % off.

    Normalised, a decay always goes through a window, up to where lambda is 2.5e-11. The reason is that keys close to a
    query may have weights so small that distant keys decide. The error is below 0.1 % where close keys weigh at least
    1e-7 of the distant ones. A query with no key within the window has the output zero.

    Args:
        num_heads: number H of heads.
        grid: training grid, whose number of axes a list of sigmas must match; not checked without it.
        sigma: initial width, in patches of the training grid: a number for all axes together, or a list with one for
            each.
        amplitude: initial amplitude, below `max_amplitude`.
        sigma_bounds: bounds (low, high) of sigma, in patches: sigma = low (high / low)^s with s in (0, 1).
        max_amplitude: upper bound of the amplitude.
        normalised: whether the denominator has the decay too. There is then no amplitude, since it would cancel.
        fixed: whether sigma and amplitude keep their initial values.

    Raises:
        ValueError: an initial value out of its bounds, infinite bounds, a number of sigmas other than that of the axes,
            or options of the amplitude if normalised.
    """

    CUTOFF = 7.0  # radius in widths of the widest component: beyond it lambda is below 2.5e-11

    def __init__(
        self,
        num_heads: int,
        *,
        grid: Sequence[int] | None = None,
        sigma: float | Sequence[float] = 4.0,
        amplitude: float = 1.0,
        sigma_bounds: tuple[float, float] = (0.25, 64.0),
        max_amplitude: float = 2.0,
        normalised: bool = False,
        fixed: bool = False,
    ):
        super().__init__(num_heads, normalised)
        self.sigma_bounds = sigma_bounds
        if isinstance(sigma, Sequence):
            check_axes(len(sigma), len(sigma) if grid is None else len(grid))
            raw_sigma = torch.stack([raw_width(each, sigma_bounds) for each in sigma]).repeat(num_heads, 1)
        else:
            raw_sigma = raw_width(sigma, sigma_bounds).repeat(num_heads)
        if not 0 < amplitude < max_amplitude < math.inf:
            raise ValueError(
                f"amplitude must lie between 0 and max_amplitude={max_amplitude}, not {amplitude}; both finite."
            )
        if normalised and (amplitude, max_amplitude) != (1.0, 2.0):
            raise ValueError("a normalised decay has no amplitude, which would cancel: leave out its options.")
        self.max_amplitude = max_amplitude
        self.raw_sigma = nn.Parameter(raw_sigma, requires_grad=not fixed)
        raw_amplitude = torch.tensor(amplitude / max_amplitude).logit().repeat(num_heads)
        self.raw_amplitude = None if normalised else nn.Parameter(raw_amplitude, requires_grad=not fixed)

    def sigma(self) -> Tensor:
        """Return sigma in patches, [H], or [H, C] with one for each axis."""
        return bounded_width(self.raw_sigma, self.sigma_bounds)

    def log_amplitude(self) -> Tensor:
        """Return the logarithm of the amplitude, [H], which is finite where the amplitude underflows."""
        if self.raw_amplitude is None:
            return full_precision(self.raw_sigma).new_zeros(self.num_heads)
        return math.log(self.max_amplitude) + F.logsigmoid(full_precision(self.raw_amplitude))

    def amplitude(self) -> Tensor:
        """Return the amplitude, [H]."""
        return self.log_amplitude().exp()

    def extra_repr(self) -> str:
        """Return the number of heads, the bounds of sigma and the form, for `repr`."""
        return f"num_heads={self.num_heads}, sigma_bounds={self.sigma_bounds}, normalised={self.normalised}"

    def learned(self) -> dict[str, Tensor]:
        """Return `sigma` (or one for each axis), and `amplitude` unless normalised: [H] each."""
        widths = self.sigma()
        sigma = {"sigma": widths} if widths.ndim == 1 else {f"sigma_{c}": x for c, x in enumerate(widths.unbind(-1))}
        return sigma if self.normalised else {**sigma, "amplitude": self.amplitude()}

    def log_profile(self, squares: Tensor) -> Tensor:
        """Return log f of |r|^2 / sigma^2, [H, ...] to the same."""
        raise NotImplementedError

    def log_of_offsets(self, offsets: Tensor) -> Tensor:
        """Return log lambda(r) = log amplitude + log f(|r| / sigma): offsets [..., C] -> [H, ...].

        Raises:
            ValueError: offsets of another number of axes than there are sigmas for.
        """
        view = (-1, *[1] * (offsets.ndim - 1))
        sigma, squares = self.sigma(), offsets.square()
        if sigma.ndim == 1:
            scaled = squares.sum(-1) / sigma.square().view(view)
        else:
            check_axes(sigma.shape[-1], offsets.shape[-1])
            each_axis = zip(squares.unbind(-1), sigma.square().unbind(-1), strict=True)
            scaled = torch.stack([square / variance.view(view) for square, variance in each_axis]).sum(0)
        return self.log_amplitude().view(view) + self.log_profile(scaled)

    def components_of(self, amplitudes: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return Gaussians of these amplitudes, [H, G], and of these shares of sigma, [G]; as `components`."""
        sigma = self.sigma()  # [H] or [H, C]
        return amplitudes, sigma[:, None] * shares.view(-1, *[1] * (sigma.ndim - 1))

    def numerator_splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return the ways to sum a decay that is in the numerator only, as `splits` does."""
        raise NotImplementedError

    def splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return `numerator_splits`, or a window up to `CUTOFF` if normalised."""
        if not self.normalised:
            return self.numerator_splits(widths, dim)
        return [Split(self.CUTOFF * widths[-1], None, len(widths))]


def node_spacing(width: float, dim: int) -> float:
    """Return the distance between nodes for a Gaussian of this width, both in patches.

    It is half the width, and less in three dimensions, for the same error of 3 %. The error of each axis grows with the
    square of the spacing. That of the sum grows with the root of the dimension.
    """
    return width / 2 * min(1.0, (2 / dim) ** 0.25)


class GaussianDecay(DistanceDecay):
    """A Gaussian decay, lambda(r) = amplitude exp(-|r|^2 / (2 sigma^2))."""

    def log_profile(self, squares: Tensor) -> Tensor:
        """Return -|r|^2 / (2 sigma^2)."""
        return -squares / 2

    def log_columns(self, positions: Tensor, num_prefix: int = 0) -> tuple[Tensor, Tensor]:
        """Return a = (u, 1, -|u|^2 / 2) and b = (u, log amplitude - |u|^2 / 2, 1) of u = p / sigma, from the centre."""
        sigma, patches = self.sigma(), positions[num_prefix:]
        patches = patches if patches.is_floating_point() else patches.to(angle_dtype(patches))
        if sigma.ndim == 2:
            check_axes(sigma.shape[-1], positions.shape[-1])
        u = (patches - patches.mean(0)) / sigma.view(self.num_heads, 1, -1)  # [H, N, C]
        half = -u.square().sum(-1, keepdim=True) / 2
        one, height = torch.ones_like(half), half + self.log_amplitude().view(-1, 1, 1)
        a, b = torch.cat([u, one, half], dim=-1), torch.cat([u, height, one], dim=-1)
        return F.pad(a, (0, 0, num_prefix, 0)), F.pad(b, (0, 0, num_prefix, 0))

    def components(self) -> tuple[Tensor, Tensor]:
        """Return the decay itself, of amplitude [H, 1] and width [H, 1] or [H, 1, C]."""
        amplitude = self.amplitude()[:, None]
        return self.components_of(amplitude, amplitude.new_ones(1))

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
    9 % low far above, as under a smaller amplitude. The gradient of sigma is within 2 % up to twice the
    side, and 0.7, 0.4 and 0.2 of the exact one at 4, 8 and 16 times it.
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
        """Return the four Gaussians of the fit: amplitudes [H, 4], and widths [H, 4] or [H, 4, C]."""
        amplitude = self.amplitude()[:, None]
        return self.components_of(amplitude * amplitude.new_tensor(self.WEIGHTS), amplitude.new_tensor(self.WIDTHS))

    def numerator_splits(self, widths: Sequence[float], dim: int) -> list[Split]:
        """Return a window alone, nodes alone, or a window with the narrowest Gaussian and nodes with the others."""
        sigma = widths[0] / self.WIDTHS[0]
        return [
            Split(9 * sigma, None, len(widths)),
            Split(None, node_spacing(sigma / 2, dim), 0),
            Split(sigma / 2, node_spacing(sigma, dim), 1),
        ]
