"""Feature maps with their definitions and kernels, for the tests of feature maps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from performer_string import FEATURE_MAPS, FeatureMap, build_feature_map
from performer_string.feature_maps import RandomFeatures
from performer_string.ops import reference


@dataclass(frozen=True)
class Case:
    """A feature map with options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name and the options, for the names of tests."""
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def is_own(self) -> bool:
        """Whether the map is a user's, which has no definition here."""
        return not FEATURE_MAPS[self.name].__module__.startswith("performer_string.")

    @property
    def is_exact(self) -> bool:
        """Whether the map has no random projection."""
        return not issubclass(FEATURE_MAPS[self.name], RandomFeatures)

    def make(self, num_heads: int = 2, seed: int = 0, **options: Any) -> FeatureMap:
        """Return the map in float64 for heads of width 6, with 16 features if it is random."""
        options = {**({} if self.is_exact else {"num_features": 16}), **self.options, **options}
        return build_feature_map(self.name, head_dim=6, num_heads=num_heads, seed=seed, **options).double()

    def features(self, phi: FeatureMap, x: Tensor) -> Tensor:
        """Return the features of x [B, H, N, d] by the definition."""
        scale = self.options.get("scale", x.shape[-1] ** -0.5)
        if self.name == "polynomial":
            return reference.polynomial_features(x, scale, self.options.get("lower", False))
        if self.name == "elu":
            return reference.elu_features(x)
        if self.name == "arc-cosine":
            return reference.arc_cosine_features(x, phi.projection, self.options["order"])
        if self.name == "favor+":
            return reference.positive_features(x, phi.projection, scale)
        return reference.hyperbolic_features(x, phi.projection, scale)

    def kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Return what phi(q)^T phi(k) estimates, [...] for q and k [..., d].

        The arc-cosine kernels are by quadrature over the plane of q and k.
        """
        if self.name == "elu":
            return (reference.elu_features(q) * reference.elu_features(k)).sum(-1)
        logits = (q * k).sum(-1) * self.options.get("scale", q.shape[-1] ** -0.5)
        if self.name == "polynomial":
            return 1 + logits + logits**2 / 2 if self.options.get("lower") else logits**2
        if self.name != "arc-cosine":
            return torch.exp(logits)
        p, norms = self.options["order"], q.norm(dim=-1) * k.norm(dim=-1)
        angle = torch.acos(((q * k).sum(-1) / norms).clamp(-1, 1))
        phase = torch.linspace(0, 2 * math.pi, 4001, dtype=q.dtype)[:-1]
        product = phase.cos().clamp(min=0) * (phase - angle[..., None]).cos().clamp(min=0)
        return 2 * norms**p * 2**p * math.factorial(p) * (product**p).mean(-1)


RANDOM = [
    Case("favor+"),
    Case("favor+hyperbolic"),
    Case("favor+", {"scale": 0.5}),
    *(Case("arc-cosine", {"order": order}) for order in (1, 2, 3, 4, 8)),
]
HEAVY_TAILED = [Case("arc-cosine", {"order": 16})]  # too much for the statistics of draws
EXACT = [
    Case("polynomial"),
    Case("polynomial", {"lower": True}),
    Case("polynomial", {"lower": True, "scale": 0.5}),
]

OWN = [case for case in map(Case, FEATURE_MAPS) if case.is_own]  # of a module that `pytest -p` has imported
CASES = [*RANDOM, *HEAVY_TAILED, *EXACT, Case("elu"), *OWN]
