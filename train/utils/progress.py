"""Progress of loops: tqdm's bar on a terminal, and a line now and then in other output, such as a log file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from tqdm import tqdm

BETWEEN = 60.0  # seconds between two lines
FIRST = 10.0  # seconds without a line, so that short commands write none


def clock_time(seconds: float) -> str:
    """Return a time as `0:01:30`, or a question mark for an unknown time."""
    return str(timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "?"


def is_terminal() -> bool:
    """Return whether stderr is a terminal, for bars."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_first_process() -> bool:
    """Return whether this process is alone, or the first one of a distributed training."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return True
    return bool(distributed.get_rank() == 0)


class Lines:
    """Lines on stderr about the loops that are running, and about results.

    Args:
        clock: function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.loops: list[Loop] = []  # from the outermost one
        self.begin()

    def begin(self) -> None:
        """Begin a command, whose first seconds have no lines."""
        self.begun = self.clock()
        self.last = self.begun + FIRST - BETWEEN
        self.results: list[str] = []  # of the first seconds

    def enter(self, loop: Loop) -> None:
        """Add a loop within those that are running."""
        if not self.loops:
            self.begin()
        loop.begun = self.clock()
        self.loops.append(loop)

    def leave(self, loop: Loop) -> None:
        """Remove a loop, and those within it that an error has ended."""
        if loop in self.loops:
            del self.loops[self.loops.index(loop) :]

    def show(self) -> None:
        """Write a line about all loops, if one is due."""
        if self.clock() - self.last < BETWEEN:
            return
        texts, within = list[str](), 0.0
        for loop in reversed(self.loops):
            within = loop.share(within)
            texts = [loop.text(within, self.clock() - loop.begun)] * bool(loop.title) + texts
        self.write([*self.results, "; ".join(texts)])

    def result(self, text: str) -> None:
        """Write a result at once, or with the first line."""
        self.results.append(text)
        if self.clock() - self.begun >= FIRST:
            self.write(self.results)

    def write(self, lines: Sequence[str]) -> None:
        """Write lines to stderr, from the first of several processes alone."""
        self.last, self.results = self.clock(), []
        if sys.stderr is not None and is_first_process():
            sys.stderr.write("".join(f"{line}\n" for line in lines if line))
            sys.stderr.flush()


LINES = Lines()


class Loop:
    """A loop with the methods of tqdm's bar that are used here, and lines in place of a bar; see `progress`."""

    def __init__(self, iterable: Iterable[Any] | None, title: str, total: float | None, costs: Sequence[float] | None):
        self.iterable, self.title, self.total, self.costs = iterable, title, total, costs
        self.n: float = 0
        self.postfix, self.begun = "", 0.0

    def __iter__(self) -> Iterator[Any]:
        with self:
            for item in () if self.iterable is None else self.iterable:
                yield item
                self.update()

    def __enter__(self) -> Loop:
        LINES.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the loop."""
        LINES.leave(self)

    def update(self, n: float = 1) -> None:
        """Count finished steps, and write a line if one is due; the end of a loop has none."""
        self.n += n
        if self.n != self.total:
            LINES.show()

    def set_postfix_str(self, text: str) -> None:
        """Set text at the end of the line, and write one if it is due."""
        self.postfix = text
        LINES.show()

    def share(self, within: float) -> float:
        """Return the share of the loop that is done, from 0 to 1.

        Args:
            within: share of the loop within this one, which counts where the costs of the steps are known.
        """
        if not self.total:
            return 0.0
        if self.costs is None:
            return min(1.0, self.n / self.total)
        done = int(self.n)
        return (sum(self.costs[:done]) + within * sum(self.costs[done : done + 1])) / sum(self.costs)

    def text(self, share: float, seconds: float) -> str:
        """Return the loop's part of a line.

        Args:
            share: share of the loop that is done.
            seconds: time since its beginning.
        """
        parts = [f"{math.floor(100 * share)}% ({self.n:g} of {self.total:g})" if self.total else f"{self.n:g}"]
        parts += [f"{clock_time(seconds * (1 - share) / share)} left"] if share else []
        return f"{self.title}: {', '.join([*parts, *([self.postfix] if self.postfix else [])])}"


def progress(
    iterable: Iterable[Any] | None = None,
    desc: str = "",
    total: float | None = None,
    costs: Sequence[float] | None = None,
    only_lines: bool = False,
    **options: Any,
) -> Any:
    """Return a loop that shows its progress on stderr: tqdm's bar on a terminal, which leaves no trace, else lines.

    A line comes after `BETWEEN` seconds, and is about this loop and those around it.

    Args:
        iterable: what the loop is over; None for a loop whose body calls `update`.
        desc: title of the loop; without one it has no part of a line.
        total: number of steps; by default the length of `iterable`.
        costs: relative time of each step, where a step is one loop of its own, for the time that is left.
        only_lines: whether there is no bar on a terminal.
        options: further options of tqdm.
    """
    if is_terminal():
        return tqdm(iterable, desc, total, disable=only_lines, **{"leave": False, **options})
    if total is None and hasattr(iterable, "__len__"):
        total = len(iterable)  # type: ignore[arg-type]
    return Loop(iterable, desc, total, costs)


def note(text: str) -> None:
    """Write a line to stderr, above a bar where there is one."""
    tqdm.write(text, file=sys.stderr)


def say_result(text: str) -> None:
    """Write a result of a long command to stderr as soon as it is known, where that is no terminal."""
    if text and not is_terminal():
        LINES.result(text)
