"""Time, memory and error of attention by the number of tokens, and from how many tokens linear attention is faster.

Methods are measured in turn at each length, at the level of attention with a large matrix product beside them, whose
speed is the peak that theirs is given a share of. Before any speed is printed each method of ours is compared with its
definition, and the evaluation stops at one that is off.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.arguments import Once, positive
from eval.contestants import METHODS, Attentions, grid_of, layer_call, model_call, operations
from eval.measure import check_rounds, exponent, in_turn, peak_bytes, ratio, relative_error, square_product
from eval.report import Row, save_figure
from performer_string.utils.registry import lookup

HELP = "time, memory and error by the number of tokens, and where linear attention overtakes softmax"
LEVELS = {"attention": None, "layer": layer_call, "model": model_call}
REFERENCE = "softmax"
PRODUCT = "matrix product"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    powers = [2**n for n in range(8, 15)]
    parser.add_argument("--tokens", type=positive, nargs="+", action=Once, default=powers, help="up to millions")
    parser.add_argument("--levels", nargs="+", action=Once, default=["attention"], help=", ".join(LEVELS))
    parser.add_argument("--methods", nargs="+", default=["all"], help=", ".join(METHODS))
    parser.add_argument("--heads", type=int, default=4, help="at the level of attention; the others are a ViT-tiny")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--features", type=int, default=256, help="random features a head")
    parser.add_argument("--feature-map", default="favor+")
    parser.add_argument("--sigma", type=float, default=4.0, help="of the locality, in patches")
    parser.add_argument("--std", type=float, default=0.5, help="of the queries and keys at the level of attention")
    parser.add_argument("--rotation", action="store_true", help="at the level of attention too, with circulant-string")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--backward", action="store_true", help="time the backward pass too")
    parser.add_argument("--rounds", type=int, default=5, help="measurements, after one not counted")
    parser.add_argument("--longest", type=float, default=10.0, help="leave out what would take more seconds a call")


def timed(out: Callable[[], Tensor], backward: bool) -> Callable[[], None]:
    def call() -> None:
        if backward:
            out().sum().backward()
            return
        with torch.inference_mode():
            out()

    return call


class Length:
    """The calls of all methods at one level and number of tokens, made when they are needed."""

    def __init__(self, level: str, attentions: Attentions):
        self.level, self.attentions = level, attentions
        self.options, self.device = attentions.options, attentions.device

    def calls(self, methods: Sequence[str], tokens: int) -> tuple[dict[str, Callable[[], None]], dict[str, float]]:
        """A call for each method, and the relative error of its outputs to those of exact softmax: of layers and models
        with the same weights, where softmax is among the methods. A locality has none, which is not after softmax."""
        make = LEVELS[self.level]
        outs: dict[str, Callable[[], Tensor]]
        errors = dict.fromkeys(methods, math.nan)
        compared = [name for name in methods if name != "linear+lf"]
        if make is None:
            inputs = self.attentions.inputs(tokens)
            every = self.attentions.outputs(tokens, *inputs)
            outs = {name: every[name] for name in methods}
            with torch.inference_mode():
                errors |= {name: self.attentions.error(outs[name](), *inputs) for name in compared}
        else:
            outs = {name: make(name, self.options, grid_of(tokens), self.device) for name in methods}
            if REFERENCE in methods:
                with torch.inference_mode():
                    exact = outs[REFERENCE]()
                    errors |= {name: relative_error(outs[name](), exact) for name in compared}
        return {name: timed(out, self.options.backward) for name, out in outs.items()}, errors


def affordable(found: Sequence[Row], methods: Sequence[str], tokens: int, longest: float) -> list[str]:
    """The methods that are predicted to take no longer than `longest` seconds.

    From the last length on, by the power that the last two differ by, from 1 to 2; after a single length softmax by
    the square and others in proportion.
    """
    chosen = []
    for name in methods:
        own = sorted((r for r in found if r["method"] == name), key=lambda r: r["tokens"])[-2:]
        power = 2.0 if name == REFERENCE else 1.0
        if len(own) == 2:
            power = min(2.0, max(1.0, exponent([r["tokens"] for r in own], [r["ms"] for r in own])))
        seconds = own[-1]["ms"] / 1000 * (tokens / own[-1]["tokens"]) ** power if own else 0.0
        if seconds <= longest:
            chosen.append(name)
        else:
            tqdm.write(
                f"{name} is left out at {tokens} tokens: it would take {seconds:.1f} s a call if time grew as "
                f"N^{power:.1f}, and --longest is {longest:g}."
            )
    return chosen


def crossover(length: Length, found: Sequence[Row], method: str, device: torch.device) -> int | None:
    """The number of tokens from which `method` is faster than softmax, by bisection between two measured lengths."""
    ratios = sorted((r["tokens"], r["to softmax"]) for r in found if r["method"] == method)
    faster = [n for n, value in ratios if value < 1]
    if not faster:
        return None
    high = faster[0]
    slower = [n for n, value in ratios if value >= 1 and n < high]
    if not slower:
        return high
    low = slower[-1]
    while high - low > max(16, low // 16):
        middle = (low + high) // 32 * 16
        if middle in (low, high):
            break
        calls, _ = length.calls([method, REFERENCE], middle)
        times = in_turn(calls, length.options.rounds, device)
        if ratio(times[method], times[REFERENCE]) < 1:
            high = middle
        else:
            low = middle
    return high


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    check_rounds(options.rounds)
    methods = list(METHODS) if "all" in options.methods else list(options.methods)
    for name in methods:
        lookup("method", name, dict.fromkeys(METHODS))
    for level in options.levels:
        lookup("level", level, LEVELS)
    attentions = Attentions(options, device)
    attentions.check(methods)
    product, product_operations = square_product(attentions.dtype, device)
    for level in options.levels:
        length = Length(level, attentions)
        found: list[dict[str, Any]] = []
        for tokens in tqdm(sorted(options.tokens), desc=level, leave=False, disable=None):
            names = affordable(found, methods, tokens, options.longest)
            calls, errors = length.calls(names, tokens)
            beside = {PRODUCT: product} if level == "attention" else {}
            times = in_turn({**calls, **beside}, options.rounds, device)
            peak = product_operations / statistics.median(times[PRODUCT]) if beside else math.nan  # a second
            for name, call in calls.items():
                median = statistics.median(times[name])
                row = {
                    "level": level,
                    "method": name,
                    "tokens": tokens,
                    "ms": 1000 * median,
                    "tokens/s": tokens / median,
                    "to softmax": ratio(times[name], times[REFERENCE]) if REFERENCE in times else math.nan,
                    "peak MiB": peak_bytes(call, device) / 2**20,
                    "error to softmax": errors[name],
                    "of peak": operations(name, options, tokens) / median / peak,
                }
                found.append(row)
                yield row
        for row in found:  # at the end: of all lengths
            own = [other for other in found if other["method"] == row["method"]]
            tokens_of = [other["tokens"] for other in own]
            row["time exponent"] = exponent(tokens_of, [other["ms"] for other in own])
            row["memory exponent"] = exponent(tokens_of, [other["peak MiB"] for other in own])
        for name in methods:
            where = crossover(length, found, name, device) if name != REFERENCE else None
            for row in found:
                if row["method"] == name:
                    row["faster than softmax from"] = "" if where is None else where


def summary(found: Sequence[Row]) -> list[Row]:
    digits = {"ms": 2, "tokens/s": 0, "to softmax": 3, "peak MiB": 1, "error to softmax": 4, "of peak": 3}
    digits |= {"time exponent": 2, "memory exponent": 2}
    return [{k: round(v, digits[k]) if k in digits else v for k, v in row.items()} for row in found]


def plot(found: Sequence[Row], path: Path) -> None:
    """Time and memory over the tokens on logarithmic axes, a row of panels for each level, exponents in the legend."""
    from matplotlib.figure import Figure

    levels = list(dict.fromkeys(row["level"] for row in found))
    figure = Figure(figsize=(9, 3.6 * len(levels)))
    panels = figure.subplots(len(levels), 2, squeeze=False)
    for level, axes in zip(levels, panels, strict=True):
        for axis, column, slope in zip(axes, ("ms", "peak MiB"), ("time exponent", "memory exponent"), strict=True):
            for name in dict.fromkeys(row["method"] for row in found if row["level"] == level):
                own = [row for row in found if (row["level"], row["method"]) == (level, name)]
                label = f"{name} (N^{own[0][slope]:.2f})"
                axis.loglog([row["tokens"] for row in own], [row[column] for row in own], marker="o", label=label)
            axis.set(xlabel="tokens", ylabel=column, title=level)
            axis.legend(fontsize=7)
    figure.tight_layout()
    save_figure(figure, path)
