"""What evaluation computes once and keeps for as long as the tensors it was made from stay the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Kept:
    """The latest few results, each with the tensors that it depends on; a copy or a saved module starts without any.

    Args:
        size: how many.
    """

    def __init__(self, size: int):
        self.size = size
        self.results: dict[Hashable, tuple[Any, Any, Any]] = {}

    def get(self, key: Hashable, sources: Iterable[Tensor], make: Callable[[], T]) -> T:
        """The result kept under `key`, or `make()` where there is none or one of `sources` has changed since."""
        if torch.compiler.is_compiling():
            return make()
        sources = tuple(sources)
        stamp = [
            (x.data_ptr(), x._version, x.dtype) if not x.is_inference() else (x.data_ptr(), x.dtype) for x in sources
        ]
        if key in self.results and self.results[key][0] == stamp:
            return self.results[key][2]
        self.results.pop(key, None)
        while len(self.results) >= self.size:
            del self.results[next(iter(self.results))]
        # The sources are kept as well, so that no other tensor can come to lie where one of them was.
        self.results[key] = (stamp, sources, make())
        return self.results[key][2]

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "results": {}}
