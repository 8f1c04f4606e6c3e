"""What the tests of the Triton kernels share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def take_first_block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Compile the kernels of modules for the first block size that fits, unless the test is marked `gpu`."""
    if not GPU or request.node.get_closest_marker("gpu"):
        return
    for module in modules:
        for kernel in vars(importlib.import_module(f"performer_string.ops.triton.{module}")).values():
            kernel = getattr(kernel, "kernel", None)
            if hasattr(kernel, "early_config_prune"):
                prune = kernel.early_config_prune
                first = lambda *args, prune=prune, **constants: prune(*args, **constants)[:1]  # noqa: E731
                monkeypatch.setattr(kernel, "early_config_prune", first)


def assert_compiled_and_checkpointed_equal(attend: Callable[..., Tensor], leaves: Sequence[Tensor]) -> None:
    """Compare outputs and gradients of a function with those of its compiled graph, and within a checkpoint."""
    results = []
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for call in (attend, compiled, partial(checkpoint, attend, use_reentrant=False)):
        out = call(*leaves)
        weight = torch.arange(out.numel(), device=DEVICE).reshape(out.shape).cos()
        results.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    for plain, *others in zip(*results, strict=True):
        for other in others:
            torch.testing.assert_close(other, plain)
