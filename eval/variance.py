"""What one draw of random features makes of a kernel, by its order and the number of features.

For a query and a key of given norms and angle, phi(q)^T phi(k) has the kernel as its mean over draws. Its standard
deviation over the kernel falls as 1/sqrt(m) where draws are independent, from a value known in closed form:

    FAVOR+ (arXiv:2009.14794, Lemma 2)    sqrt((e^s - 1) / m),             s = scale |q + k|^2
    hyperbolic FAVOR+                     sqrt((e^s + e^-s - 2) / m)
    arc-cosine of order p                 sqrt((2 k_2p / k_p^2 - 1) / m),  k_p the kernel

The draws here are orthogonal in blocks, which is what is measured (at high orders most of the variance is in draws
rarer than those looked at, so that what is measured lies below). But attention divides by a sum of such estimates
with the same draw, and what counts is the weight that a key gets among others: the sharper the kernel, the higher its
limit of many features, and the more features it takes to come near it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from eval.arguments import Once, positive
from eval.dense import has_log_kernel
from eval.report import Row, save_figure
from performer_string import FEATURE_MAPS, build_feature_map
from performer_string.feature_maps import RandomFeatures

HELP = "error of one draw of random features, and the weight of a matching key among others, by map and features"
ON_CPU = True
MAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "favor+": ("favor+", {}),
    "favor+hyperbolic": ("favor+hyperbolic", {}),
    **{f"arc-cosine, order {p}": ("arc-cosine", {"order": p}) for p in (1, 2, 4, 8, 16)},
}
HEADS = 128  # draws at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    features = [2**n for n in range(4, 10)]
    parser.add_argument("--features", type=positive, nargs="+", action=Once, default=features, help="numbers of them")
    parser.add_argument("--angles", type=float, nargs="+", action=Once, default=[0.0, 30.0, 60.0], help="degrees")
    parser.add_argument("--others", type=positive, default=80, help="keys in random directions beside the one")
    parser.add_argument("--head-dim", type=positive, default=24)
    parser.add_argument("--logit", type=float, default=2.0, help="scale |q| |k|, for maps that see norms (FAVOR+)")
    parser.add_argument("--draws", type=positive, default=1024)


def vectors(angle: float, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """A query and a key of equal norm, [1, 1, 1, d] each: draws are isotropic, so that any plane will do."""
    q, k = torch.zeros(2, 1, 1, 1, options.head_dim, dtype=torch.float64)
    q[..., 0] = 1
    k[..., 0], k[..., 1] = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return q * norm(options), k * norm(options)


def norm(options: argparse.Namespace) -> float:
    """Of queries and keys, with logits of scale d^-1/2."""
    return float((options.logit * options.head_dim**0.5) ** 0.5)


def make(title: str, features: int, heads: int, head_dim: int, seed: int = 0) -> RandomFeatures:
    name, extra = MAPS.get(title, (title, {}))
    sizes = {"head_dim": head_dim, "num_heads": heads, "num_features": features}
    return cast(RandomFeatures, build_feature_map(name, seed=seed, **sizes, **extra).double())


def independent(phi: RandomFeatures, q: Tensor, k: Tensor) -> float:
    """The relative standard deviation of phi with independent draws; not a number for a map without a closed form."""
    form = phi.form()
    if form is None:
        return math.nan
    if form.kind == "exponential":
        s = 2 * form.square * float((q + k).square().sum())
        variance = math.exp(s) - 1 + (math.exp(-s) - 1 if form.mirrored else 0)
    else:
        twice = build_feature_map(
            "arc-cosine", head_dim=phi.head_dim, num_heads=1, num_features=1, order=2 * form.order
        )
        variance = 2 * math.exp(float(twice.log_kernel(q, k) - 2 * phi.log_kernel(q, k))) - 1
    return float((variance / phi.num_features) ** 0.5)


class Case:
    """One map with so many features: a query, and a key at each angle of it among keys in random directions."""

    def __init__(self, title: str, features: int, options: argparse.Namespace):
        self.title, self.features, self.options = title, features, options
        self.estimates: dict[float, list[Tensor]] = {angle: [] for angle in options.angles}
        self.weights: dict[float, list[Tensor]] = {angle: [] for angle in options.angles}
        self.limits: dict[float, list[Tensor]] = {angle: [] for angle in options.angles}

    def draw(self, start: int, heads: int) -> RandomFeatures:
        """Measures so many draws, each with other keys of its own."""
        phi = make(self.title, self.features, heads, self.options.head_dim, seed=start)
        rng = torch.Generator().manual_seed(start)
        shape = (1, heads, self.options.others, self.options.head_dim)
        others = F.normalize(torch.randn(shape, generator=rng, dtype=torch.float64), dim=-1) * norm(self.options)
        for angle in self.options.angles:
            q, k = (x.expand(1, heads, 1, -1) for x in vectors(angle, self.options))
            keys = torch.cat([k, others], dim=-2)
            self.estimates[angle].append((phi.queries(q) * phi.keys(k)).sum(-1).flatten())  # [heads]
            of_query, of_keys = phi.pair(q, keys)
            weights = (of_query @ of_keys.mT).flatten(0, 2)  # [heads, 1 + others]
            self.weights[angle].append(weights[:, 0] / weights.sum(-1).clamp_min(torch.finfo(weights.dtype).tiny))
            self.limits[angle].append(phi.log_kernel(q, keys).softmax(-1)[..., 0].flatten())
        return phi

    def rows(self, phi: RandomFeatures) -> Iterator[Row]:
        peak = float(phi.log_kernel(*vectors(0.0, self.options)))
        for angle in self.options.angles:
            q, k = vectors(angle, self.options)
            kernel, weights = float(phi.log_kernel(q, k)), torch.cat(self.weights[angle])
            yield {
                "map": self.title,
                "features": self.features,
                "angle": angle,
                "kernel over its peak": math.exp(kernel - peak),
                "relative error": float(
                    (torch.cat(self.estimates[angle]) / math.exp(kernel) - 1).square().mean().sqrt()
                ),
                "with independent draws": independent(phi, q, k),
                "weight": float(weights.mean()),
                "lowest twentieth": float(weights.quantile(0.05)),
                "weight in the limit": float(torch.cat(self.limits[angle]).mean()),
            }


@torch.no_grad()
def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    own = [name for name, kind in FEATURE_MAPS.items() if issubclass(kind, RandomFeatures) and name != "arc-cosine"]
    for name in [name for name in own if not has_log_kernel(FEATURE_MAPS[name])]:
        own.remove(name)
        tqdm.write(f"{name} is left out: it has no log_kernel, the kernel that it estimates.")
    cases = [Case(title, m, options) for title in dict.fromkeys([*MAPS, *own]) for m in options.features]
    for case in tqdm(cases, desc="feature maps", leave=False, disable=None):
        for start in range(0, options.draws, HEADS):
            phi = case.draw(start, min(HEADS, options.draws - start))
        yield from case.rows(phi)


def least_angle(found: Sequence[Row]) -> list[Row]:
    least = min(r["angle"] for r in found)
    return [r for r in found if r["angle"] == least]


def summary(found: Sequence[Row]) -> list[Row]:
    """The weight of the key nearest to the query, and its lowest twentieth over draws: a line for each map."""
    lines: list[Row] = []
    near = least_angle(found)
    for title in dict.fromkeys(r["map"] for r in near):
        mine = [r for r in near if r["map"] == title]
        name = {f"weight of a key at {mine[0]['angle']:g} degrees": title}
        weights = {f"m = {r['features']}": f"{r['weight']:.2f} ({r['lowest twentieth']:.2f})" for r in mine}
        lines.append({**name, **weights, "limit": f"{mine[0]['weight in the limit']:.2f}"})
    return lines


def plot(found: Sequence[Row], path: Path) -> None:
    """At the smallest angle, over the number of features: the error of the estimate, and the weight."""
    from matplotlib.figure import Figure

    near = least_angle(found)
    figure = Figure(figsize=(11, 4.6))
    errors, weights = figure.subplots(1, 2)
    for title in dict.fromkeys(r["map"] for r in near):
        mine = [r for r in near if r["map"] == title]
        features = [r["features"] for r in mine]
        (line,) = errors.plot(features, [r["relative error"] for r in mine], marker="o", label=title)
        errors.plot(features, [r["with independent draws"] for r in mine], linestyle=":", color=line.get_color())
        weights.plot(features, [r["weight"] for r in mine], marker="o", color=line.get_color(), label=title)
        lowest = [r["lowest twentieth"] for r in mine]
        weights.fill_between(features, lowest, [r["weight"] for r in mine], color=line.get_color(), alpha=0.12)
        weights.axhline(mine[0]["weight in the limit"], linestyle=":", color=line.get_color())
    angle = f"{near[0]['angle']:g} degrees"
    errors.set_yscale("log")
    errors.set(ylabel="standard deviation over the kernel", title=f"estimate at {angle} (dotted: independent draws)")
    weights.set(
        ylabel="mean, down to the lowest twentieth of draws", title=f"weight of a key at {angle} (dotted: the limit)"
    )
    weights.legend(fontsize=8)
    for axis in (errors, weights):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("features")
    figure.tight_layout()
    save_figure(figure, path)
