"""Private names of torch that the library cannot do without, each with the public way that would replace it.

Tested on torch 2.11 and 2.14. Nothing else in the library uses a private name of torch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

# `scaled_dot_product_attention` returns no normalisers. No public function of torch does on a CPU.
FLASH_ATTENTION_CPU: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` or forward-mode differentiation is active.

    The fused kernels have no rule for either. torch has no public function that says so.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def is_exporting() -> bool:
    """Return whether `torch.export` traces the program.

    The public `torch.compiler.is_exporting()` is True in every compiled graph of torch 2.11.
    """
    return torch.compiler._is_exporting_flag


def values_unavailable() -> bool:
    """Return whether tensors have no values to look at or to cache: under a compiler or a transform."""
    return torch.compiler.is_compiling() or is_transformed()


def needs_plain_operations() -> bool:
    """Return whether attention has to be plain operations on whole tensors: under transforms and in an export."""
    return is_exporting() or is_transformed()


def is_batched_gradient(x: Tensor) -> bool:
    """Return whether `x` is a batch of gradients, as `is_grads_batched=True` makes them; no public function says so."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(x))


def version_of(x: Tensor) -> int:
    """Return how often a tensor was written to in place, 0 for one of inference mode; torch has no public counter."""
    return 0 if x.is_inference() else x._version


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module has forward or backward hooks of its own; torch has no public list of them."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, of a replica of `nn.DataParallel` too, whose parameters are not listed."""
    tensors: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        parts = {**part._parameters, **getattr(part, "_former_parameters", {}), **part._buffers}
        tensors |= {f"{name}.{key}".lstrip("."): x for key, x in parts.items() if x is not None}
    return tensors


@functools.cache
def has_bf16_products(device: torch.device) -> bool:
    """Return whether a device multiplies in bf16. A CPU that emulates it takes ten times as long as in float32."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def has_bf16_tiles(device: torch.device) -> bool:
    """Return whether rounding to bf16 pays: with AVX-512 and without AMX it costs what the products gain."""
    without_tiles = torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()
    return has_bf16_products(device) and not (device.type == "cpu" and without_tiles)
