"""What does a distance decay cost relative to plain linear attention, by length and sigma, and how exact is it?

All are measured in turn, round after round. A time is printed only where the error is within its bound. The error is
relative to N x N weights with the same features, at some of the queries. The command is `python -m eval decay`.

Columns: `attention` (plain, or the decay's sigma, with its name where there are several, and exact for N x N weights),
`tokens`, `regime` (window, grid, both, blocks or exact: how the decay is summed), `error` (relative, of outputs, and of
gradients with `--backward`), `ms` (median of the rounds), `to plain` (time over that of plain linear attention in the
same round), `peak MiB`, `time exponent` and `memory exponent` (b of N^b).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from eval.argument_types import WithoutRepetitions, feature_map_name
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import add_rounds, median_ratio, peak_bytes, power_law_exponent, relative_error, time_in_turn
from eval.speed.methods import feature_map
from eval.speed.reports import DECAY
from eval.tables import line_of
from performer_string import LOCALITIES, build_locality, grid_positions, linear_attention
from performer_string.bias import DistanceDecay, L1Decay, RelativeBias
from performer_string.bias.linear_time.plan import choose_plans
from performer_string.ops.layout import Grid, TokenLayout
from performer_string.utils.numerics import safe_divide
from performer_string.utils.registry import lookup
from train.utils.progress import progress

EXACT = "exact"  # N x N weights, always used for few tokens
BLOCKS = "blocks"  # exact sum of a decay of the L1 distance
BOUNDS = {EXACT: 1e-4, BLOCKS: 1e-4, "window": 1e-3, "grid": 0.03, "window and grid": 0.03}
COMPARED_QUERIES = 64  # number of queries whose exact sums are compared
PLAIN = "plain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval decay`."""
    parser.add_argument(
        "--sides",
        type=int,
        nargs="+",
        action=WithoutRepetitions,
        default=[32, 64, 128, 256],
        help="tokens along a square grid",
    )
    parser.add_argument("--sigmas", type=float, nargs="+", default=[2.0, 16.0], help="sigmas in patches")
    parser.add_argument(
        "--locality",
        nargs="+",
        action=WithoutRepetitions,
        default=["gaussian"],
        help="gaussian, exponential, radial, exponential-l1, or one of your own",
    )
    parser.add_argument("--normalised", action="store_true", help="apply the decay in the denominator too")
    parser.add_argument("--features", type=int, default=256, help="random features per head")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--feature-map", type=feature_map_name, default="favor+")
    parser.add_argument("--exact-up-to", type=int, default=4096, help="tokens up to which N x N weights are timed too")
    parser.add_argument("--backward", action="store_true", help="time the backward pass too")
    add_rounds(parser, 5)


class DenseBias(RelativeBias):
    """A relative bias that is always applied to N x N weights, also on grids."""

    def __init__(self, locality: RelativeBias):
        super().__init__(locality.num_heads, locality.normalised)
        self.locality = locality

    def of_offsets(self, offsets: Tensor) -> Tensor:
        return self.locality.of_offsets(offsets)

    def grid_of(self, layout: TokenLayout) -> Grid | None:
        return None


class AttentionsAtLength:
    """Attention at one length: plain, with the decay of each sigma, and with N x N weights where these fit.

    Args:
        options: options of the command line.
        side: number of tokens along each side of a square grid.
        device: device to compute on.

    Attributes:
        calls: functions to be timed, by name.
        regimes, errors: method by which each decay is summed, and its relative error, by name.
    """

    def __init__(self, options: argparse.Namespace, side: int, device: torch.device):
        torch.manual_seed(0)
        shape = (1, options.heads, side * side, options.head_dim)
        self.q, self.k, self.v = (torch.randn(shape, device=device, requires_grad=options.backward) for _ in range(3))
        self.backward = options.backward
        self.phi = feature_map(options, options.head_dim).to(device)
        self.positions = grid_positions((side, side), device=device)
        self.calls: dict[str, Callable[[], None]] = {PLAIN: self.attend()}
        self.regimes, self.errors = {PLAIN: ""}, {PLAIN: 0.0}
        for kind, sigma in itertools.product(options.locality, options.sigmas):
            bounds = (min(0.25, sigma / 2), max(64.0, 2 * sigma))
            bias_options = {"sigma": sigma, "sigma_bounds": bounds, "normalised": options.normalised}
            locality = build_locality(kind, num_heads=options.heads, **bias_options).to(device)
            assert isinstance(locality, (DistanceDecay, L1Decay))
            name = f"sigma {sigma:g}" if len(options.locality) == 1 else f"{kind}, sigma {sigma:g}"
            self.calls[name] = self.attend(locality)
            self.regimes[name], self.errors[name] = self.check(locality)
            if side * side <= options.exact_up_to:
                exact = f"{name}, exact"
                self.calls[exact] = self.attend(DenseBias(locality))
                self.regimes[exact], self.errors[exact] = EXACT, 0.0

    def attend(self, locality: RelativeBias | None = None) -> Callable[[], None]:
        """Return a function that runs linear attention, with its backward pass for `--backward`."""
        positions = None if locality is None else self.positions

        def call() -> None:
            with torch.set_grad_enabled(self.backward):
                out = linear_attention(self.q, self.k, self.v, self.phi, locality=locality, positions=positions)
                if self.backward:
                    out.sum().backward()

        return call

    def check(self, locality: DistanceDecay | L1Decay) -> tuple[str, float]:
        """Compare a decay with N x N weights at some of the queries, and with `--backward` its gradients too.

        Returns:
            The regime, and the largest relative error.

        Raises:
            ValueError: an error above the regime's bound.
        """
        queries = torch.linspace(0, len(self.positions) - 1, COMPARED_QUERIES, device=self.q.device).long().unique()
        decay = locality.of_offsets(self.positions[queries, None] - self.positions).detach()  # [H, queries, N]
        with torch.set_grad_enabled(self.backward):
            fast = linear_attention(self.q, self.k, self.v, self.phi, locality=locality, positions=self.positions)
            fq, fk = self.phi.pair(self.q, self.k)
            weights = fq[:, :, queries] @ fk.mT
            decayed = weights * decay
            slow = safe_divide(decayed @ self.v, (decayed if locality.normalised else weights).sum(-1, keepdim=True))
            pairs = [(fast[:, :, queries], slow)]
            if self.backward:
                upstream = torch.randn_like(slow)
                gradients = [torch.autograd.grad((out * upstream).sum(), (self.q, self.k, self.v)) for out in pairs[0]]
                pairs += zip(*gradients, strict=True)
        error = max(relative_error(a, b) for a, b in pairs)
        regime = self.regime(locality, fq.shape[-1])
        if not error <= BOUNDS[regime]:
            sigma = float(locality.sigma().flatten()[0].detach())
            raise ValueError(
                f"at {len(self.positions)} tokens and sigma {sigma:g} the {regime} is "
                f"{error:.2%} off, above its bound of {BOUNDS[regime]:.1%}: no speed is given for it."
            )
        return regime, error

    def regime(self, locality: DistanceDecay | L1Decay, features: int) -> str:
        """Return the method that sums a decay at this length: `exact`, `blocks`, `window`, `grid` or both of these."""
        grid = locality.grid_of(TokenLayout(self.positions))
        if grid is None:
            return EXACT
        plan = choose_plans(locality, grid, features, self.v.shape[-1])[0]
        if plan.blocks is not None:
            return BLOCKS
        return " and ".join(n for n, part in (("window", plan.radius), ("grid", plan.cell)) if part is not None)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each length and kind of attention."""
    if min(options.sides) < 2:
        raise ValueError(f"a grid has 2 tokens or more along a side, not {min(options.sides)}.")
    if min(options.sigmas) <= 0:
        raise ValueError(f"--sigmas must be positive, not {min(options.sigmas):g}.")
    decays = {name: kind for name, kind in LOCALITIES.items() if issubclass(kind, (DistanceDecay, L1Decay))}
    for name in options.locality:
        lookup("decay", name, decays)
    rows: list[dict[str, Any]] = []
    for side in progress(sorted(options.sides), desc="lengths"):
        attentions = AttentionsAtLength(options, side, device)
        times = time_in_turn(attentions.calls, options.rounds, device)
        for name, call in attentions.calls.items():
            row = {
                "attention": name,
                "tokens": side * side,
                "regime": attentions.regimes[name],
                "error": attentions.errors[name],
                "ms": 1000 * statistics.median(times[name]),
                "to plain": median_ratio(times[name], times[PLAIN]),
                "peak MiB": peak_bytes(call, device) / 2**20,
            }
            rows.append(row)
            yield row
    for row in rows:  # these columns need all lengths
        same = [other for other in rows if other["attention"] == row["attention"]]
        for title, column in (("time exponent", "ms"), ("memory exponent", "peak MiB")):
            row[title] = power_law_exponent([other["tokens"] for other in same], [other[column] for other in same])


EVALUATION = Evaluation(
    __doc__, add_arguments, evaluate, DECAY, line=line_of(("attention", "tokens"), "ms", "peak MiB")
)
