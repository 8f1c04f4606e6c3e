"""Private names of torch that the library needs, each with the public way that would replace it.

Tested on torch 2.11 and 2.14. No other module of the library uses a private name of torch.

Modules of the library override `_apply`, `_save_to_state_dict` and `_load_from_state_dict` of `torch.nn.Module`. These
names are torch's extension points for moving a module, saving and loading its weights. None of them has a public way.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# Flash attention on a CPU with the logarithms of its normalisers, which no public function returns.
FLASH_ATTENTION_CPU: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` or forward-mode differentiation is active.

    The fused kernels have no rule for either. torch has no public function for this question.
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
    """Return whether tensors may have no values to test or to cache: under a compiler, a transform or a tracer."""
    return torch.compiler.is_compiling() or is_transformed() or is_traced()


def is_traced() -> bool:
    """Return whether a mode of fake tensors or `make_fx` is on, and not only one that counts or logs operations.

    torch has no public function that lists these modes.
    """
    modes = _get_current_dispatch_mode_stack()
    return any(isinstance(mode, FakeTensorMode | ProxyTorchDispatchMode) for mode in modes)


def needs_plain_operations() -> bool:
    """Return whether attention must consist of plain operations, as under a transform and in an export."""
    return torch.compiler._is_exporting_flag or is_transformed()


def is_batched_gradient(x: Tensor) -> bool:
    """Return whether `x` is a batch of gradients under `is_grads_batched=True`; no public function tells it."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(x))


def refuse_fast_path(attention: nn.MultiheadAttention) -> None:
    """Keep torch's encoder layers from computing softmax attention themselves, from the weights of this layer.

    A forward hook would do the same by a public name, but it slows every call, and tools list it as the user's.
    """
    attention._qkv_same_embed_dim = False


def version_of(x: Tensor) -> int:
    """Return the number of in-place writes to a tensor; torch has no public counter.

    Tensors of inference mode have none, and give 0.
    """
    return 0 if x.is_inference() else x._version


def is_plain_linear(layer: nn.Module) -> bool:
    """Return whether a layer is linear and given by its weight and bias alone.

    Adapters, pruning, hooks, quantised weights and the like must be called. torch has no public list of hooks.
    """
    if type(layer) is not nn.Linear or "forward" in vars(layer):
        return False
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    if hooks or nn.modules.module._has_any_global_hook():
        return False
    return not hasattr(layer.weight, "__tensor_flatten__")  # a tensor made of others, as quantised ones are


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name.

    In a replica of `nn.DataParallel`, `named_parameters` lists nothing, so that private attributes are read.
    """
    tensors: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        parts = {**part._parameters, **getattr(part, "_former_parameters", {}), **part._buffers}
        tensors |= {f"{name}.{key}".lstrip("."): x for key, x in parts.items() if x is not None}
    return tensors


@functools.cache
def has_fast_bf16(device: torch.device) -> bool:
    """Return whether products in bf16 save time, including the rounding of their operands.

    A CPU that emulates them takes ten times as long as in float32. With AVX-512 and without AMX the rounding costs what
    the products gain. torch has no public function for either.
    """
    if device.type != "cpu":
        return True
    only_avx512 = torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()
    native = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return native and not only_avx512
