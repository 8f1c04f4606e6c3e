"""Caches: of tensors between forward passes of inference, and of functions of numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar, cast

import torch

from performer_string.utils._compat import values_unavailable

T = TypeVar("T")
P = ParamSpec("P")


class TensorCache:
    """The latest few results under their keys, while it is switched on.

    It does not look at the tensors that a result depends on. No test of their identity is right for every way to write
    a weight (`.data`, shared memory, collectives). So it is off unless `ViT.cached()` switches it on, and the weights
    must not change meanwhile. A copied or pickled cache is empty and off.

    Args:
        size: largest number of results.
    """

    def __init__(self, size: int):
        self.size = size
        self.results: dict[Hashable, Any] | None = None

    @property
    def is_on(self) -> bool:
        """Whether results are kept."""
        return self.results is not None

    def switch(self, on: bool) -> None:
        """Switch the cache on or off; either way it is empty after."""
        self.results = {} if on else None

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached result, or `make()`.

        Gradients need a result of their own, so that nothing is cached while they are enabled.
        """
        results = self.results
        if results is None or torch.is_grad_enabled() or values_unavailable():
            return make()
        result = results.get(key)
        if result is None:  # not a look-up afterwards: another thread may have removed the result by then
            result = make()
            for oldest in list(results)[: max(0, len(results) + 1 - self.size)]:
                results.pop(oldest, None)
            results[key] = result
        return cast(T, result)

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "results": None}


def memoized(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a pure function of hashable arguments with a cache of its latest results.

    Under a compiler the function runs without it: Dynamo traces through a cache, and warns at every call of one.

    Args:
        maxsize: largest number of results.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        cached = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            return cached(*args, **kwargs)  # type: ignore[arg-type]  # hashable by contract

        return call

    return decorate
