"""Locality focusing: values are attenuated by their distance, and the attention's normaliser does not see it.

    o_i = sum_j A_ij lambda(p_i - p_j) v_j

with A the normalised attention (softmax or linear) and lambda a decay for each head. Source: RiemannFormer,
arXiv:2506.07405. The forms here are exact and hold N x N weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from performer_string.choices import construct, lookup


class Locality(nn.Module):
    """A decay lambda(r) = amplitude f(|r| / sigma), with sigma and amplitude learned for each head within bounds.

    Args:
        num_heads: H.
        sigma: at the start, in patches of the training grid.
        amplitude: at the start, below `max_amplitude`.
        sigma_bounds: sigma stays between them: sigma = low (high / low)^s with s in (0, 1).
        max_amplitude: the bound of the amplitude.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        sigma: float = 4.0,
        amplitude: float = 1.0,
        sigma_bounds: tuple[float, float] = (0.25, 64.0),
        max_amplitude: float = 2.0,
    ):
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads has to be positive, not {num_heads}.")
        self.low, self.high = sigma_bounds
        if not 0 < self.low < sigma < self.high:
            raise ValueError(f"sigma has to lie within its bounds, 0 < {self.low} < sigma < {self.high}, not {sigma}.")
        if not 0 < amplitude < max_amplitude:
            raise ValueError(f"amplitude has to lie between 0 and max_amplitude={max_amplitude}, not {amplitude}.")
        self.num_heads, self.max_amplitude = num_heads, max_amplitude
        share = torch.tensor(math.log(sigma / self.low) / math.log(self.high / self.low))
        self.raw_sigma = nn.Parameter(share.logit().repeat(num_heads))
        self.raw_amplitude = nn.Parameter(torch.tensor(amplitude / max_amplitude).logit().repeat(num_heads))

    def sigma(self) -> Tensor:
        """In patches, [H]."""
        return self.low * (self.high / self.low) ** self.raw_sigma.sigmoid()

    def amplitude(self) -> Tensor:
        """[H]."""
        return self.max_amplitude * self.raw_amplitude.sigmoid()

    def profile(self, squares: Tensor) -> Tensor:
        """f of |r|^2 / sigma^2."""
        raise NotImplementedError

    def matrix(self, positions: Tensor, num_prefix: int = 0) -> Tensor:
        """lambda(p_i - p_j), [H, N, N]; 1 where either is one of the first `num_prefix` tokens, which have no place.

        Args:
            positions: [N, C].
        """
        if positions.ndim != 2:
            raise ValueError(f"positions have to be [N, C], not {list(positions.shape)}.")
        difference = positions[:, None] - positions  # [N, N, C]; not cdist, whose gradient is NaN at 0
        squares = difference.square().sum(-1) / self.sigma().square()[:, None, None]  # [H, N, N]
        decay = self.amplitude()[:, None, None] * self.profile(squares)
        token = torch.arange(len(positions), device=positions.device)
        placed = (token >= num_prefix) & (token[:, None] >= num_prefix)
        return torch.where(placed, decay, 1.0)


class GaussianLocality(Locality):
    """lambda(r) = amplitude exp(-|r|^2 / (2 sigma^2))."""

    def profile(self, squares: Tensor) -> Tensor:
        return (-squares / 2).exp()


class ExponentialLocality(Locality):
    """lambda(r) = amplitude exp(-|r| / sigma)."""

    def profile(self, squares: Tensor) -> Tensor:
        here = squares == 0  # the root has no gradient at 0
        return (-torch.where(here, 1.0, squares).sqrt()).exp().where(~here, torch.ones_like(squares))


LOCALITIES: dict[str, type[Locality]] = {"gaussian": GaussianLocality, "exponential": ExponentialLocality}


def build_locality(name: str, *, num_heads: int, **options: Any) -> Locality:
    """A decay by its name in `LOCALITIES`; `options` are those of `Locality`.

    Raises:
        ValueError: an unknown name or option, with the nearest known one; or a value out of its range.
    """
    return construct("locality", name, lookup("locality", name, LOCALITIES), options, num_heads=num_heads)
