"""From how many tokens is linear attention faster than softmax, and what are memory and error of each?

Methods are measured in turn at each length: as attention alone, as one layer or as a whole ViT-tiny. A large matrix
product is measured beside attention, and `of peak` is relative to its speed. Each method of this library is first
compared with its definition, and the evaluation stops at one whose error is too large.

Columns: `level` (attention, layer or model), `method`, `tokens`, `ms` (median of the rounds), `tokens/s`, `to softmax`
(time over that of softmax in the same round), `peak MiB`, `error to softmax` (relative, of the outputs), `of peak` (nan
with a decay, and where features are not computed by one product), `time exponent` and `memory exponent` (b of N^b),
`faster than softmax from` (tokens, empty where softmax is faster at the most).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from eval.argument_types import WithoutRepetitions, feature_map_name
from eval.evaluations import Evaluation
from eval.report import Row, select
from eval.speed.measure import (
    CapturedCall,
    add_rounds,
    median_ratio,
    peak_bytes,
    power_law_exponent,
    relative_error,
    square_product,
    time_in_turn,
)
from eval.speed.methods import METHODS, NARROW, AttentionMethods, near_square_grid, operations
from eval.speed.reports import LENGTH
from eval.speed.vit_tiny import layer_call, model_call
from eval.tables import line_of
from performer_string.utils.registry import lookup
from train.utils.progress import note, progress
from train.utils.ranges import at_least

LEVELS = {"attention": None, "layer": layer_call, "model": model_call}
REFERENCE = "softmax"
PRODUCT = "matrix product"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval length`."""
    powers = [2**n for n in range(8, 15)]
    once: dict[str, Any] = {"nargs": "+", "action": WithoutRepetitions}
    parser.add_argument("--tokens", type=at_least(1), **once, default=powers, help="up to millions")
    parser.add_argument("--levels", **once, default=["attention"], help=", ".join(LEVELS))
    parser.add_argument("--methods", nargs="+", default=["all"], help=", ".join(METHODS))
    parser.add_argument("--heads", type=int, default=4, help="for attention alone; layers and models are a ViT-tiny's")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--qk-dim", type=at_least(1), default=16, help="width in linear+narrow (default: %(default)s)")
    parser.add_argument("--batch-size", type=at_least(1), default=1, help="sequences or images in a batch")
    parser.add_argument("--features", type=int, default=256, help="random features per head")
    parser.add_argument("--feature-map", type=feature_map_name, default="favor+")
    parser.add_argument("--sigma", type=float, default=4.0, help="sigma of the distance decay, in patches")
    parser.add_argument("--std", type=float, default=0.5, help="of queries and keys, for attention alone")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--backward", action="store_true", help="time the backward pass too")
    parser.add_argument(
        "--graphs", action="store_true", help="on a GPU: time CUDA graphs, without Python's time to launch kernels"
    )
    add_rounds(parser, 5)
    parser.add_argument("--longest", type=float, default=10.0, help="leave out calls that would take more seconds")


def with_backward(out: Callable[[], Tensor], backward: bool) -> Callable[[], None]:
    """Return a function that computes an output and, if `backward`, its gradients."""

    def call() -> None:
        if backward:
            out().sum().backward()
            return
        with torch.inference_mode():
            out()

    return call


def calls_of(
    level: str, attentions: AttentionMethods, methods: Sequence[str], tokens: int
) -> tuple[dict[str, Callable[[], None]], dict[str, float]]:
    """Return a call for each method at a level, and the relative error of its outputs to exact softmax.

    Layers and models are compared with those of the same weights, where softmax is among the methods. Methods with a
    decay or narrow queries have no error, since they do not approximate softmax.
    """
    make, options, device = LEVELS[level], attentions.options, attentions.device
    outputs: dict[str, Callable[[], Tensor]]
    errors = dict.fromkeys(methods, math.nan)
    compared = [name for name in methods if name not in ("linear+lf", NARROW)]
    if make is None:
        inputs = attentions.inputs(tokens)
        every = attentions.outputs(tokens, *inputs)
        outputs = {name: every[name] for name in methods}
        with torch.inference_mode():
            errors |= {name: attentions.error(outputs[name](), *inputs) for name in compared}
    else:
        outputs = {name: make(name, options, near_square_grid(tokens), device) for name in methods}
        if REFERENCE in methods:
            with torch.inference_mode():
                exact = outputs[REFERENCE]()
                errors |= {name: relative_error(outputs[name](), exact) for name in compared}
    calls: dict[str, Callable[[], None]] = {name: with_backward(o, options.backward) for name, o in outputs.items()}
    return {name: CapturedCall(call) for name, call in calls.items()} if options.graphs else calls, errors


def affordable_methods(rows: Sequence[Row], methods: Sequence[str], tokens: int, longest: float) -> list[str]:
    """Return the methods that are predicted to take no longer than `longest` seconds.

    The prediction extrapolates from the last measured length by the power law through the last two, with an exponent
    from 1 to 2. After a single length it is quadratic for softmax, and linear for others.

    Args:
        rows: rows measured so far.
        methods: names of the methods to choose from.
        tokens: number of tokens to predict for.
        longest: longest time of a call in seconds.
    """
    affordable = []
    for name in methods:
        last = sorted(select(rows, method=name), key=lambda row: row["tokens"])[-2:]
        power = 2.0 if name == REFERENCE else 1.0
        if len(last) == 2:
            power = min(2.0, max(1.0, power_law_exponent([r["tokens"] for r in last], [r["ms"] for r in last])))
        seconds = last[-1]["ms"] / 1000 * (tokens / last[-1]["tokens"]) ** power if last else 0.0
        if seconds <= longest:
            affordable.append(name)
        else:
            note(
                f"{name} is left out at {tokens} tokens: it would take {seconds:.1f} s a call if time grew as "
                f"N^{power:.1f}, and --longest is {longest:g}."
            )
    return affordable


def crossover(level: str, attentions: AttentionMethods, rows: Sequence[Row], method: str) -> int | None:
    """Return the number of tokens from which on a method is faster than softmax; None where it is slower at the end.

    It is found by bisection between two measured lengths.
    """
    ratios = {row["tokens"]: row["to softmax"] for row in select(rows, method=method)}
    low = max((n for n, value in ratios.items() if value >= 1), default=0)
    high = min((n for n, value in ratios.items() if value < 1 and n > low), default=0)
    if not low or not high:
        return high or None
    while high - low > max(16, low // 16):
        middle = (low + high) // 32 * 16
        if middle in (low, high):
            break
        calls, _ = calls_of(level, attentions, [method, REFERENCE], middle)
        times = time_in_turn(calls, attentions.options.rounds, attentions.device)
        if median_ratio(times[method], times[REFERENCE]) < 1:
            high = middle
        else:
            low = middle
    return high


def add_scaling(level: str, attentions: AttentionMethods, rows: list[dict[str, Any]], method: str) -> None:
    """Add the columns that need all lengths to the rows of a method: exponents and the crossover with softmax."""
    same = [row for row in rows if row["method"] == method]
    lengths = [row["tokens"] for row in same]
    exponents = {
        "time exponent": power_law_exponent(lengths, [row["ms"] for row in same]),
        "memory exponent": power_law_exponent(lengths, [row["peak MiB"] for row in same]),
    }
    where = crossover(level, attentions, rows, method) if method != REFERENCE else None
    for row in same:
        row.update(exponents, **{"faster than softmax from": "" if where is None else where})


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each level, length and method."""
    methods = list(METHODS) if "all" in options.methods else list(options.methods)
    for name in methods:
        lookup("method", name, dict.fromkeys(METHODS))
    for name in options.levels:
        lookup("level", name, LEVELS)
    if options.graphs and device.type != "cuda":
        raise ValueError(f"--graphs are CUDA graphs, of a GPU, not of the device {device.type}. Leave it out.")
    attentions = AttentionMethods(options, device)
    attentions.check(methods)
    product, product_operations = square_product(attentions.dtype, device)
    for name in options.levels:
        rows: list[dict[str, Any]] = []
        for tokens in progress(sorted(options.tokens), desc=name):
            affordable = affordable_methods(rows, methods, tokens, options.longest)
            calls, errors = calls_of(name, attentions, affordable, tokens)
            reference = {PRODUCT: product} if name == "attention" else {}
            times = time_in_turn({**calls, **reference}, options.rounds, device)
            peak = product_operations / statistics.median(times[PRODUCT]) if reference else math.nan  # per second
            for method, call in calls.items():
                median = statistics.median(times[method])
                ratio = median_ratio(times[method], times[REFERENCE]) if REFERENCE in times else math.nan
                row = {
                    "level": name,
                    "method": method,
                    "tokens": tokens,
                    "ms": 1000 * median,
                    "tokens/s": options.batch_size * tokens / median,
                    "to softmax": ratio,
                    "peak MiB": peak_bytes(call, device) / 2**20,
                    "error to softmax": errors[method],
                    "of peak": operations(method, options, tokens) / median / peak,
                }
                rows.append(row)
                yield row
        for method in methods:
            add_scaling(name, attentions, rows, method)


EVALUATION = Evaluation(
    __doc__, add_arguments, evaluate, LENGTH, line=line_of(("level", "method", "tokens"), "ms", "peak MiB")
)
