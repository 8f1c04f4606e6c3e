"""What evaluation computes once and keeps for as long as the tensors it was made from stay the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from performer_string.utils._compat import is_replica, values_unavailable, version_of

T = TypeVar("T")
_steps = 0  # of all optimizers


def _stepped(*_: Any) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_stepped)


class TensorCache(nn.Module):
    """The latest few results, each with the tensors that it depends on.

    A part of the module that uses it, so that all are forgotten when that goes into training or back, or loads
    weights, is converted or moved, and at a step of any optimizer (fused ones count no changes); a copy or a saved
    module starts without any, and a replica of `nn.DataParallel` keeps none. Writing to a source in place is seen,
    except through its `.data` or a NumPy view or by a collective of `torch.distributed` (as a broadcast), after which
    `model.eval()` is to be called again.

    Args:
        size: how many.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        self.results: dict[Hashable, tuple[Any, Any, Any]] = {}

    def get(self, key: Hashable, sources: Iterable[Tensor], make: Callable[[], T]) -> T:
        """The result kept under `key`, or `make()` where there is none or one of `sources` has changed since."""
        sources = tuple(sources)
        if values_unavailable() or is_replica(self):  # whose sources are no parameters
            return make()
        if any(x.is_inference() for x in sources):  # which count no changes
            return make()
        stamp = [_steps, *((x.data_ptr(), version_of(x), x.dtype) for x in sources)]
        found = self.results.get(key)  # once: another thread may replace it
        if found is not None and found[0] == stamp:
            return cast(T, found[2])
        with torch.inference_mode(False), torch.no_grad():  # or it could be no source of another result
            made = make()
        self.results.pop(key, None)
        for oldest in list(self.results)[: max(0, len(self.results) + 1 - self.size)]:
            self.results.pop(oldest, None)
        # The sources are kept as well, so that no other tensor can come to lie where one of them was.
        self.results[key] = (stamp, sources, made)
        return made

    def train(self, mode: bool = True) -> TensorCache:
        self.results.clear()
        return super().train(mode)

    def _apply(self, *arguments: Any, **options: Any) -> TensorCache:
        self.results.clear()  # of another type, on another device
        super()._apply(*arguments, **options)
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self.results.clear()
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "results": {}}
