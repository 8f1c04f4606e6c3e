"""Time, memory and error of a call, measured in the same way by every evaluation."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

Call = Callable[[], object]
K = TypeVar("K", bound=Hashable)


def relative_error(out: Tensor, wanted: Tensor) -> float:
    """|out - wanted| / |wanted|."""
    out, wanted = out.detach().double(), wanted.detach().double()
    return float((out - wanted).norm() / wanted.norm())


def seconds(call: Call, device: torch.device) -> float:
    """Wall time of one call, waiting for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def check_rounds(rounds: int) -> int:
    if rounds < 5:
        raise ValueError(f"a median needs at least 5 rounds, not {rounds}.")
    return rounds


def in_turn(calls: Mapping[K, Call], rounds: int, device: torch.device) -> dict[K, list[float]]:
    """Seconds of each call in each round, after one round not counted. All are called in turn, round after round, so
    that a drift of the machine's speed hits all alike."""
    times: dict[K, list[float]] = {name: [] for name in calls}
    for number in tqdm(range(rounds + 1), desc="rounds", leave=False, disable=None):
        for name, call in calls.items():
            taken = seconds(call, device)
            if number:
                times[name].append(taken)
    return times


def ratio(times: Sequence[float], reference: Sequence[float]) -> float:
    """The median over the rounds of one call's time over another's in the same round."""
    return statistics.median(a / b for a, b in zip(times, reference, strict=True))


def square_product(dtype: torch.dtype, device: torch.device) -> tuple[Call, int]:
    """A product of two matrices large enough to be as fast as this device multiplies them, and its operations."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, side, side, device=device, dtype=dtype).unbind(0)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2 * side**3


def peak_bytes(call: Call, device: torch.device) -> int:
    """The most bytes at a time that a call takes from torch's allocator, above what was there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or each profile writes lines of its stages to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    now = peak = 0
    assert record.profiler is not None
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def flash_operations(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *rest: object, **named: object
) -> int:
    """Of torch's flash attention on a CPU, which its own counter does not know: additions are counted too, as there."""
    *batch, queries, width = query
    return 2 * math.prod(batch) * queries * key[-2] * (width + value[-1])


def multiplications(call: Call) -> int:
    """Multiplications, each with an addition, in a call's matrix products, convolutions and attention on a CPU: of a
    second call, which finds what the first has kept."""
    call()
    known = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flash_operations}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        call()
    return counter.get_total_flops() // 2


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """b of values ~ sizes^b, by least squares on the logarithms; NaN for fewer than two sizes."""
    if len(sizes) < 2 or min(values) <= 0:
        return math.nan
    x, y = ([math.log(a) for a in series] for series in (sizes, values))
    return statistics.linear_regression(x, y).slope
