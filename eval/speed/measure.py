"""Time, memory, operations and error of a call, measured in the same way by every evaluation."""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from performer_string import ViT
from train.inspection import multiplications
from train.utils.devices import synchronize
from train.utils.progress import progress
from train.utils.ranges import at_least

SHORTEST = 0.02  # shortest time of consecutive calls on a GPU, in seconds
Call = Callable[[], object]
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class CachedCall(Generic[T]):
    """A function whose model caches its rotations and projections as long as it exists, as in inference."""

    def __init__(self, vit: ViT, call: Callable[[], T]):
        self.call, self.caches = call, ExitStack()
        self.caches.enter_context(vit.cached())

    def __call__(self) -> T:
        return self.call()


def relative_error(out: Tensor, expected: Tensor) -> float:
    """Return |out - expected| / |expected|, in float64."""
    out, expected = out.detach().double(), expected.detach().double()
    return float((out - expected).norm() / expected.norm())


def seconds(call: Call, device: torch.device) -> float:
    """Return the wall time of one call in seconds, with synchronisation of the device.

    On a GPU it is the mean of up to 20 consecutive calls, so that synchronisation counts less in short ones.
    """
    once = _seconds(call, device, 1)
    count = 1 if device.type == "cpu" else min(20, int(SHORTEST / once))
    return _seconds(call, device, count) / count if count > 1 else once


def _seconds(call: Call, device: torch.device, count: int) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronize(device)
    return time.perf_counter() - start


class CapturedCall:
    """A call captured as a CUDA graph: its kernels, without Python's time to launch them.

    Args:
        eager: function to capture, on the current GPU; it must not synchronise with the device.

    Raises:
        RuntimeError: the call cannot be captured.
    """

    def __init__(self, eager: Call):
        self.eager = eager
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # the first calls allocate and tune
                eager()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            eager()

    def __call__(self) -> None:
        self.graph.replay()


def add_rounds(parser: argparse.ArgumentParser, default: int) -> None:
    """Add the option `--rounds`, the number of measurements of each call; a median needs some."""
    text = "measurements of time, 5 or more, after one not counted"
    parser.add_argument("--rounds", type=at_least(5), default=default, help=text)


def time_in_turn(calls: Mapping[K, Call], rounds: int, device: torch.device) -> dict[K, list[float]]:
    """Time calls in turn, round after round, so that a drift of the machine's speed affects all equally.

    Args:
        calls: functions to time, by name.
        rounds: number of measurements of each call, after one that is not counted.
        device: device to synchronise with.

    Returns:
        Times of each call in seconds, one for each round.
    """
    times: dict[K, list[float]] = {name: [] for name in calls}
    for number in progress(range(rounds + 1), desc="rounds"):
        for name, call in calls.items():
            duration = seconds(call, device)
            if number:
                times[name].append(duration)
    return times


def square_product(dtype: torch.dtype, device: torch.device) -> tuple[Call, int]:
    """Return a product of matrices that are large enough for the device's peak speed, and its number of operations."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, side, side, device=device, dtype=dtype).unbind(0)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2 * side**3


def peak_bytes(call: Call, device: torch.device) -> float:
    """Return the peak memory that a call allocates from torch, in bytes above the memory in use before it.

    It is measured on the CPU and on NVIDIA and AMD GPUs, and NaN on other devices.
    """
    if device.type == "cuda":
        call = call.eager if isinstance(call, CapturedCall) else call  # a graph keeps its memory
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        return math.nan
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each profile writes its stages to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    now = peak = 0
    assert record.profiler is not None
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def million_parameters(model: nn.Module) -> float:
    """Return the number of a model's weights in millions, rounded to four decimals."""
    return round(sum(p.numel() for p in model.parameters()) / 1e6, 4)


def gigamacs(vit: ViT, size: Sequence[int]) -> float:
    """Return the multiplications in folded inference of one image in 1e9, to four digits; NaN if not countable."""
    counted = multiplications(vit, size)
    return math.nan if counted is None else float(f"{counted / 1e9:.4g}")


def median_ratio(times: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of two calls' times in the same round."""
    return statistics.median(a / b for a, b in zip(times, reference, strict=True))


def power_law_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent b of values ~ sizes^b by least squares on logarithms; NaN for fewer than two sizes."""
    if len(sizes) < 2 or min(values) <= 0:
        return math.nan
    x, y = ([math.log(a) for a in series] for series in (sizes, values))
    return statistics.linear_regression(x, y).slope
