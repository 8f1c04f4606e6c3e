"""Float32 or better, whatever the type of a module or its inputs: for norms, angles, widths and long sums."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from performer_string.utils._compat import is_exporting

# Computed once, since the compiler of torch 2.11 cannot trace this query.
AUTOCAST_DEVICES = {kind for kind in ("cpu", "cuda", "mps", "xpu", "hpu") if torch.amp.is_autocast_available(kind)}
WITHOUT_FLOAT64 = {"mps"}  # kinds of devices


def full_precision(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 where it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def in_one_type(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys in the smallest type that holds both of theirs."""
    dtype = torch.promote_types(q.dtype, k.dtype)
    return q.to(dtype), k.to(dtype)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast casts nothing on x's device; an empty one where autocast is off.

    An autocast context that changes nothing is an error on the meta device, and cannot be loaded again from an exported
    program.
    """
    kind = x.device.type
    if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def no_float64(name: str, device: str, remedy: str) -> ValueError:
    """Return the error for a function or command `name` on a device that has no float64, with what to do."""
    return ValueError(f"{name} computes in float64, which torch has not on {device}: {remedy}.")


def check_float64(name: str, model: nn.Module) -> None:
    """Raise a ValueError, which names the function `name`, for a model on a device that has no float64."""
    kinds = {x.device.type for x in (*model.parameters(), *model.buffers())} & WITHOUT_FLOAT64
    if kinds:
        raise no_float64(name, kinds.pop(), "move the model to the CPU before, and back afterwards")


def angle_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which angles of positions are computed, float64 where there is one.

    In float32 an angle of 10^6 radians is off by 0.03. Devices of Apple have no float64, and runtimes of exported
    programs have no cosine of it.
    """
    return torch.float32 if x.device.type in WITHOUT_FLOAT64 or is_exporting() else torch.float64
