"""What all Triton kernels ask of devices, types and memory. Importing this module does not import Triton."""

from __future__ import annotations

import torch
from torch import Tensor

WIDEST = 128  # width of heads and values; beyond it the sums of a program leave the registers
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def why_no_device(x: Tensor) -> str | None:
    """Return why the kernels do not run on a tensor's device, or None where they do."""
    if x.device.type != "cuda":
        return f"the Triton kernels run on NVIDIA GPUs, not on {x.device.type}"
    if torch.version.hip is not None:
        return "the Triton kernels are tested on NVIDIA GPUs only"
    if torch.cuda.get_device_capability(x.device) < (8, 0):
        return "the Triton kernels need compute capability 8.0 (Ampere) or newer"
    return None


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
