"""Memory of this process and its workers while it works, and whether it grows."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

import psutil


def resident(process: psutil.Process) -> int:
    """Return the resident bytes of a process, none of one that has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def return_free_memory() -> None:
    """Give the system back what malloc holds free; else a leak may fill what earlier tests have freed, unseen."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)


class MemoryCurve:
    """Memory over the calls of `sample`: resident bytes of this process and its largest worker, and Python's blocks.

    Args:
        calls: how many are expected, of which some thirty are measured: collecting garbage takes longer than a call.
    """

    def __init__(self, calls: int):
        self.every, self.calls = max(1, calls // 30), 0
        self.resident, self.blocks = list[int](), list[int]()
        self.process = psutil.Process()

    def sample(self) -> None:
        """Measure, at every so many calls."""
        self.calls += 1
        if self.calls % self.every:
            return
        gc.collect()
        if not self.resident:
            return_free_memory()
            gc.freeze()  # what is there before the first measurement is not looked through again at each one
        self.resident.append(self.process.memory_info().rss + max(map(resident, self.process.children()), default=0))
        self.blocks.append(sys.getallocatedblocks())

    def around(self, function: Callable) -> Callable:
        """Return a function that measures before each of its calls."""

        def sampled(*arguments, **options):
            self.sample()
            return function(*arguments, **options)

        return sampled

    def growth(self) -> tuple[float, float]:
        """Return by how many MiB, and blocks, the last fifth is above the second: the first one warms up.

        The least of each fifth counts, since workers come and go.
        """
        gc.unfreeze()
        fifth = len(self.resident) // 5
        assert fifth >= 3, "too few measurements"
        early, late = slice(fifth, 2 * fifth), slice(-fifth, None)
        grown = (min(self.resident[late]) - min(self.resident[early])) / 2**20
        return grown, float(min(self.blocks[late]) - min(self.blocks[early]))
