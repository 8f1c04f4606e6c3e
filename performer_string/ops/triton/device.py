"""Requirements of all Triton kernels on devices, types and memory, and their import.

Triton is imported at the first use. With TRITON_INTERPRET=1 in the environment before that, the kernels run on the CPU,
slowly, for tests.

Block sizes are tuned at the first call of each head width, number of features and power of two of tokens, from 1,024
tokens on. That takes a minute or two forward and backward. TRITON_CACHE_AUTOTUNING=1 keeps the choice on disk in
versions of Triton that know it. With one choice of blocks the same inputs give the same bits.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.utils.log import warn_once

WIDEST = 128  # width of heads and values; beyond it the sums of a program leave the registers
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
KERNEL_MODULES = tuple(
    f"performer_string.ops.triton.{name}" for name in ("forward", "backward", "square_forward", "square_backward")
)


@functools.cache
def _import_kernels() -> str | None:
    """Import the kernels, once per process, and return the reason where that fails."""
    try:
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        for module in KERNEL_MODULES:
            importlib.import_module(module)
    except Exception as error:  # of any kind: a missing library is an OSError, another version an AttributeError
        return f"Triton cannot be imported ({type(error).__name__}: {error})"
    return None


@torch.compiler.assume_constant_result
def why_not_importable() -> str | None:
    """Return why the kernels cannot be imported, or None where they can. A compiler takes it for a constant."""
    return _import_kernels()


def why_other_inputs(q: Tensor, k: Tensor, v: Tensor, others: Sequence[Tensor | None]) -> str | None:
    """Return why the kernels do not run on the device, or for the types, of queries, keys and values; else None.

    Args:
        q, k, v: queries, keys and values.
        others: other tensors that the kernels read. One of another device would be read out of bounds.
    """
    if q.device.type != "cuda":
        return f"the Triton kernels run on NVIDIA GPUs, not on {q.device.type}"
    if torch.version.hip is not None:
        return "the Triton kernels are tested on NVIDIA GPUs only"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return "the Triton kernels need compute capability 8.0 (Ampere) or newer"
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"q, k and v of one type, float32, bfloat16 or float16, not {q.dtype}, {k.dtype} and {v.dtype}"
    devices = {str(x.device) for x in (q, k, v, *others) if x is not None}
    return None if len(devices) == 1 else f"all tensors on one device, not {sorted(devices)}"


def warn_of_plain_operations(log: logging.Logger, what: str, reason: str) -> None:
    """Warn once for each reason why a GPU does without the kernels.

    Args:
        log: logger of the module.
        what: text on what runs instead, and how.
        reason: reason why the kernels do not apply. Shapes, which may differ at every call, come after ", not ".
    """
    kind, _, _ = reason.partition(", not ")
    warn_once(log, kind, f"{what}; Triton kernel: {reason}.")


def dense_rows(x: Tensor) -> Tensor:
    """Return x with a last axis that is dense in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.compiler.assume_constant_result
def _allows_tf32() -> bool:
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def product_precision(x: Tensor) -> str:
    """Return the precision of products of a tensor's type: `ieee` for exact ones in float32, else `tf32`.

    A compiler takes the setting of float32 products for a constant.
    """
    return "ieee" if x.dtype == torch.float32 and not _allows_tf32() else "tf32"
