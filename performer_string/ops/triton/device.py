"""Requirements of all Triton kernels on devices, types and memory. Importing this module does not import Triton."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from performer_string.utils.log import warn_once

WIDEST = 128  # width of heads and values; beyond it the sums of a program leave the registers
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


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
