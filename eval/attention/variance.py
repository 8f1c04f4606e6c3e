"""How far is one draw of random features from its kernel, by the map, its order and the number of features?

For a query and a key of known norms and angle, phi(q)^T phi(k) has the kernel as its mean over draws. Its standard
deviation over the kernel falls as 1/sqrt(m) where draws are independent, from a value known in closed form:

    FAVOR+ (arXiv:2009.14794, Lemma 2)    sqrt((e^s - 1) / m),             s = scale |q + k|^2
    hyperbolic FAVOR+                     sqrt((e^s + e^-s - 2) / m)
    arc-cosine of order p                 sqrt((2 k_2p / k_p^2 - 1) / m),  k_p the kernel

The draws here are orthogonal in blocks. At high orders most of the variance is in rare draws, so that what is measured
lies below. But attention divides by a sum of such estimates with the same draw. What counts there is the weight that a
key gets among others. The sharper the kernel, the higher its limit, and the more features come near it.

Columns: `map`, `features` (m), `angle` (degrees), `kernel over its peak`, `relative error` (measured), `with
independent draws` (the closed form), `weight` (of the key, mean over draws), `lowest twentieth` (5 % quantile of it),
`weight in the limit` (of many features).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from eval.argument_types import WithoutRepetitions
from eval.attention.dense_attention import has_log_kernel
from eval.attention.reports import VARIANCE
from eval.evaluations import Evaluation
from eval.report import Row
from performer_string import FEATURE_MAPS, build_feature_map
from performer_string.feature_maps import RandomFeatures
from train.utils.progress import note, progress
from train.utils.ranges import at_least

MAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "favor+": ("favor+", {}),
    "favor+hyperbolic": ("favor+hyperbolic", {}),
    **{f"arc-cosine, order {p}": ("arc-cosine", {"order": p}) for p in (1, 2, 4, 8, 16)},
}
DRAWS_AT_A_TIME = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval variance`."""
    once: dict[str, Any] = {"nargs": "+", "action": WithoutRepetitions}
    features = [2**n for n in range(4, 10)]
    parser.add_argument("--features", type=at_least(1), **once, default=features, help="numbers of features")
    parser.add_argument("--angles", type=float, **once, default=[0.0, 30.0, 60.0], help="from query to key, in degrees")
    parser.add_argument("--others", type=at_least(1), default=80, help="number of further keys in random directions")
    parser.add_argument("--head-dim", type=at_least(1), default=24)
    parser.add_argument("--logit", type=float, default=2.0, help="scale |q| |k|, for maps that see norms (FAVOR+)")
    parser.add_argument("--draws", type=at_least(1), default=1024)


def query_and_key(angle: float, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return a query and a key of equal norm with an angle in degrees between them, [1, 1, 1, d] each.

    Draws are isotropic, so any plane may be used.
    """
    q, k = torch.zeros(2, 1, 1, 1, options.head_dim, dtype=torch.float64)
    q[..., 0] = 1
    k[..., 0], k[..., 1] = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return q * norm_for_logit(options), k * norm_for_logit(options)


def norm_for_logit(options: argparse.Namespace) -> float:
    """Return the norm of queries and keys whose largest logit, of scale d^-1/2, is `--logit`."""
    return float((options.logit * options.head_dim**0.5) ** 0.5)


def build_map(title: str, features: int, heads: int, head_dim: int, seed: int = 0) -> RandomFeatures:
    """Build a feature map in float64 with one draw for each head."""
    name, extra = MAPS.get(title, (title, {}))
    sizes = {"head_dim": head_dim, "num_heads": heads, "num_features": features}
    return cast(RandomFeatures, build_feature_map(name, seed=seed, **sizes, **extra).double())


def independent_deviation(phi: RandomFeatures, q: Tensor, k: Tensor) -> float:
    """Return the relative standard deviation for independent draws; NaN for a map without a closed form."""
    form = phi.form()
    if form is None:
        return math.nan
    if form.kind == "exponential":
        s = 2 * form.square * float((q + k).square().sum())
        variance = math.exp(s) - 1 + (math.exp(-s) - 1 if phi.num_projections() < phi.num_features else 0)
    else:
        twice = build_feature_map(
            "arc-cosine", head_dim=phi.head_dim, num_heads=1, num_features=1, order=2 * form.order
        )
        variance = 2 * math.exp(float(twice.log_kernel(q, k) - 2 * phi.log_kernel(q, k))) - 1
    return float((variance / phi.num_features) ** 0.5)


class Case:
    """Measurements of one map with m features: a query, a key at each angle to it, and further random keys."""

    def __init__(self, title: str, features: int, options: argparse.Namespace):
        self.title, self.features, self.options = title, features, options
        self.estimates: dict[float, list[Tensor]] = {angle: [] for angle in options.angles}
        self.weights: dict[float, list[Tensor]] = {angle: [] for angle in options.angles}
        self.limits: dict[float, list[Tensor]] = {angle: [] for angle in options.angles}

    def draw(self, start: int, heads: int) -> RandomFeatures:
        """Measure a number of draws (one for each head), each with other random keys, and return the map."""
        phi = build_map(self.title, self.features, heads, self.options.head_dim, seed=start)
        generator = torch.Generator().manual_seed(start)
        shape = (1, heads, self.options.others, self.options.head_dim)
        others = F.normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)
        others = others * norm_for_logit(self.options)
        for angle in self.options.angles:
            q, k = (x.expand(1, heads, 1, -1) for x in query_and_key(angle, self.options))
            keys = torch.cat([k, others], dim=-2)
            self.estimates[angle].append((phi.queries(q) * phi.keys(k)).sum(-1).flatten())  # [heads]
            fq, fk = phi.pair(q, keys)
            weights = (fq @ fk.mT).flatten(0, 2)  # [heads, 1 + others]
            self.weights[angle].append(weights[:, 0] / weights.sum(-1).clamp_min(torch.finfo(weights.dtype).tiny))
            self.limits[angle].append(phi.log_kernel(q, keys).softmax(-1)[..., 0].flatten())
        return phi

    def rows(self, phi: RandomFeatures) -> Iterator[Row]:
        """Yield a row for each angle, over all draws so far."""
        peak = float(phi.log_kernel(*query_and_key(0.0, self.options)))
        for angle in self.options.angles:
            q, k = query_and_key(angle, self.options)
            kernel, weights = float(phi.log_kernel(q, k)), torch.cat(self.weights[angle])
            relative = torch.cat(self.estimates[angle]) / math.exp(kernel) - 1
            yield {
                "map": self.title,
                "features": self.features,
                "angle": angle,
                "kernel over its peak": math.exp(kernel - peak),
                "relative error": float(relative.square().mean().sqrt()),
                "with independent draws": independent_deviation(phi, q, k),
                "weight": float(weights.mean()),
                "lowest twentieth": float(weights.quantile(0.05)),
                "weight in the limit": float(torch.cat(self.limits[angle]).mean()),
            }


def titles() -> list[str]:
    """Return the titles of the maps to measure, including a user's own; maps that are left out are named."""
    added = []
    for name, kind in FEATURE_MAPS.items():
        if name == "arc-cosine":
            continue
        if not issubclass(kind, RandomFeatures):
            note(f"{name} is left out: it has no random features.")
        elif has_log_kernel(kind):
            added.append(name)
        else:
            note(f"{name} is left out: it has no log_kernel, the kernel that it estimates.")
    return list(dict.fromkeys([*MAPS, *added]))


@torch.no_grad()
def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each map, number of features and angle."""
    cases = [Case(title, features, options) for title in titles() for features in options.features]
    for case in progress(cases, desc="feature maps"):
        for start in range(0, options.draws, DRAWS_AT_A_TIME):
            phi = case.draw(start, min(DRAWS_AT_A_TIME, options.draws - start))
        yield from case.rows(phi)


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, VARIANCE, on_cpu=True)
