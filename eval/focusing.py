"""What locality focusing costs beside plain linear attention, by length and sigma, and how far it is from exact.

All are measured in turn, round after round, and a ratio is the median over the rounds of a time over that of plain
linear attention in the same round. A speed is printed only for a path whose error is within its bound, against
N x N weights with the same features, for some of the queries.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.arguments import Once
from eval.contestants import feature_map
from eval.measure import check_rounds, exponent, in_turn, peak_bytes, ratio, relative_error
from eval.report import Row, save_figure
from performer_string import LOCALITIES, build_locality, grid_positions, linear_attention
from performer_string.bias import DistanceDecay, RelativeBias
from performer_string.bias.linear_time.plan import choose
from performer_string.ops.layout import TokenLayout
from performer_string.utils.numerics import safe_divide
from performer_string.utils.registry import lookup

HELP = "time, memory and error of locality focusing, by length and sigma, beside plain and exact attention"
EXACT = "exact"  # N x N, which few tokens have in any case
BOUNDS = {EXACT: 1e-4, "window": 1e-3, "grid": 0.03, "window and grid": 0.03}
QUERIES = 64  # whose exact sums are compared
PLAIN = "plain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    lengths = [32, 64, 128, 256]
    parser.add_argument("--sides", type=int, nargs="+", action=Once, default=lengths, help="tokens along a square grid")
    parser.add_argument("--sigmas", type=float, nargs="+", default=[2.0, 16.0], help="in patches")
    parser.add_argument("--locality", default="gaussian", help="gaussian, exponential, radial, or one of your own")
    parser.add_argument("--normalised", action="store_true", help="the denominator sees the decay too")
    parser.add_argument("--features", type=int, default=256, help="random features a head")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--feature-map", default="favor+")
    parser.add_argument("--exact-up-to", type=int, default=4096, help="tokens up to which exact LF is timed as well")
    parser.add_argument("--backward", action="store_true", help="time the backward pass too")
    parser.add_argument("--rounds", type=int, default=5, help="measurements, after one not counted")


class Exact(RelativeBias):
    """A locality whose sum is taken by N x N weights, whatever the positions."""

    def __init__(self, locality: RelativeBias):
        super().__init__(locality.num_heads, locality.normalised)
        self.locality = locality

    def of_offsets(self, offsets: Tensor) -> Tensor:
        return self.locality.of_offsets(offsets)

    def lattice(self, positions: Tensor, num_prefix: int) -> None:
        return None


class Contest:
    """Attention at one length: plain, focused at each sigma, and exact where it fits."""

    def __init__(self, options: argparse.Namespace, side: int, device: torch.device):
        torch.manual_seed(0)
        shape = (1, options.heads, side * side, options.head_dim)
        self.q, self.k, self.v = (torch.randn(shape, device=device, requires_grad=options.backward) for _ in range(3))
        self.backward = options.backward
        self.phi = feature_map(options).to(device)
        self.positions = grid_positions((side, side), device=device)
        self.calls: dict[str, Callable[[], None]] = {PLAIN: self.attend()}
        self.regimes, self.errors = {PLAIN: ""}, {PLAIN: 0.0}
        for sigma in options.sigmas:
            bounds = (min(0.25, sigma / 2), max(64.0, 2 * sigma))
            given: dict[str, Any] = {"sigma": sigma, "sigma_bounds": bounds, "normalised": options.normalised}
            locality = build_locality(options.locality, num_heads=options.heads, **given).to(device)
            assert isinstance(locality, DistanceDecay)
            name = f"sigma {sigma:g}"
            self.calls[name] = self.attend(locality)
            self.regimes[name], self.errors[name] = self.check(locality)
            if side * side <= options.exact_up_to:
                exact = f"{name}, exact"
                self.calls[exact] = self.attend(Exact(locality))
                self.regimes[exact], self.errors[exact] = EXACT, 0.0

    def attend(self, locality: Any = None) -> Callable[[], None]:
        def call() -> None:
            with torch.set_grad_enabled(self.backward):
                out = linear_attention(self.q, self.k, self.v, self.phi, locality=locality, positions=self.positions)
                if self.backward:
                    out.sum().backward()

        return call

    def check(self, locality: DistanceDecay) -> tuple[str, float]:
        """The regime, and the error at a few queries against N x N weights, with `--backward` the largest of the
        gradients' too; refuses a bad one."""
        some = torch.linspace(0, len(self.positions) - 1, QUERIES, device=self.q.device).long().unique()
        decay = locality.of_offsets(self.positions[some, None] - self.positions).detach()  # [H, queries, N]
        with torch.set_grad_enabled(self.backward):
            fast = linear_attention(self.q, self.k, self.v, self.phi, locality=locality, positions=self.positions)
            fq, fk = self.phi.pair(self.q, self.k)
            weights = fq[:, :, some] @ fk.mT
            focused = weights * decay
            slow = safe_divide(focused @ self.v, (focused if locality.normalised else weights).sum(-1, keepdim=True))
            pairs = [(fast[:, :, some], slow)]
            if self.backward:
                upstream = torch.randn_like(slow)
                made = [torch.autograd.grad((out * upstream).sum(), (self.q, self.k, self.v)) for out in pairs[0]]
                pairs += zip(*made, strict=True)
        error = max(relative_error(a, b) for a, b in pairs)
        regime = self.regime(locality, fq.shape[-1])
        if not error <= BOUNDS[regime]:
            raise ValueError(
                f"at {len(self.positions)} tokens and sigma {float(locality.sigma()[0].detach()):g} the {regime} is "
                f"{error:.2%} off, above its bound of {BOUNDS[regime]:.1%}: no speed is given for it."
            )
        return regime, error

    def regime(self, locality: DistanceDecay, features: int) -> str:
        grid = locality.grid_of(TokenLayout(self.positions))
        if grid is None:
            return EXACT
        plan = choose(locality, grid, features, self.v.shape[-1])[0]
        return " and ".join(n for n, part in (("window", plan.radius), ("grid", plan.cell)) if part is not None)


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    check_rounds(options.rounds)
    if min(options.sides) < 2:
        raise ValueError(f"a grid has 2 tokens or more along a side, not {min(options.sides)}.")
    if min(options.sigmas) <= 0:
        raise ValueError(f"--sigmas have to be positive, not {min(options.sigmas):g}.")
    decays = {name: kind for name, kind in LOCALITIES.items() if issubclass(kind, DistanceDecay)}
    lookup("decay", options.locality, decays)
    found: list[dict[str, Any]] = []
    for side in tqdm(sorted(options.sides), desc="lengths", leave=False, disable=None):
        contest = Contest(options, side, device)
        times = in_turn(contest.calls, options.rounds, device)
        for name, call in contest.calls.items():
            row = {
                "attention": name,
                "tokens": side * side,
                "regime": contest.regimes[name],
                "error": contest.errors[name],
                "ms": 1000 * statistics.median(times[name]),
                "to plain": ratio(times[name], times[PLAIN]),
                "peak MiB": peak_bytes(call, device) / 2**20,
            }
            found.append(row)
            yield row
    for row in found:  # at the end: of all lengths
        same = [other for other in found if other["attention"] == row["attention"]]
        for title, column in (("time exponent", "ms"), ("memory exponent", "peak MiB")):
            row[title] = exponent([other["tokens"] for other in same], [other[column] for other in same])


def summary(found: Sequence[Row]) -> list[Row]:
    """Rounded, ordered by attention."""
    digits = {"ms": 1, "to plain": 2, "peak MiB": 1, "time exponent": 2, "memory exponent": 2}
    return [
        {k: f"{v:.2%}" if k == "error" else round(v, digits[k]) if k in digits else v for k, v in row.items()}
        for row in sorted(found, key=lambda row: (row["attention"], row["tokens"]))
    ]


def plot(found: Sequence[Row], path: Path) -> None:
    """Time and memory over the tokens, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4))
    for axis, column in zip(figure.subplots(1, 2), ("ms", "peak MiB"), strict=True):
        for name in dict.fromkeys(row["attention"] for row in found):
            own = [row for row in found if row["attention"] == name]
            axis.loglog([row["tokens"] for row in own], [row[column] for row in own], marker="o", label=name)
        axis.set(xlabel="tokens", ylabel=column)
        axis.legend(fontsize=7)
    figure.tight_layout()
    save_figure(figure, path)
