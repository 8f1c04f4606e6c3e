"""A device like Apple's GPU, emulated on the CPU: without float64, and only with the operations that torch has for it.

Its tensors say that they are on torch's meta device, since torch refuses names of devices that it was not built for.
Their values are in a tensor of the CPU that they hold. An operation that mixes them with tensors of the CPU fails as on
a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import torchgen
import yaml
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from performer_string.utils import dtype

DEVICE = torch.device("meta")
KERNELS = {"MPS", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd"}
aten = torch.ops.aten


@cache
def operations() -> dict[str, set[str]]:
    """Return the devices that torch has a kernel for, by operation; empty where it is composed of other operations."""
    path = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    functions = {each["func"].split("(")[0]: each for each in yaml.load(path.read_text(), yaml.CSafeLoader)}

    def kernels(name: str) -> set[str]:
        function = functions[name]
        own = {key.strip() for keys in function.get("dispatch", {}) for key in keys.split(",")}
        return own | (kernels(function["structured_delegate"]) if "structured_delegate" in function else set())

    return {name: kernels(name) for name in functions}


def has_kernel(name: str) -> bool:
    """Return whether torch has an operation of `aten` for the device."""
    kernels = operations()[name]
    return not kernels or bool(kernels & KERNELS)


class DeviceTensor(Tensor):
    """A tensor of the emulated device, which holds its values in a tensor of the CPU."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> DeviceTensor:
        if values.dtype in (torch.float64, torch.complex128):
            raise TypeError("The emulated device has no float64.")
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        tensor = Tensor._make_wrapper_subclass(cls, values.shape, **layout, device=DEVICE)
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), options=None):
        return compute(operation, arguments, options or {})


class Emulation(TorchDispatchMode):
    """Take the operations that make tensors of the emulated device, or move tensors to it."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        return compute(operation, arguments, options or {})


def compute(operation, arguments, options):
    """Return what an operation returns, on the device where torch would compute it."""
    inputs = [x for x in tree_leaves((arguments, options)) if isinstance(x, Tensor)]
    ours = [x for x in inputs if isinstance(x, DeviceTensor)]
    device = options.get("device")
    device = None if device is None else torch.device(device)
    if not ours and device != DEVICE:
        return operation(*arguments, **options)
    name = operation.name().removeprefix("aten::")
    if ours and operation.namespace == "aten" and not has_kernel(name):
        raise NotImplementedError(f"The emulated device has no {name}.")
    moves = name in ("_to_copy", "copy_") or "index" in name  # which take tensors of two devices
    if ours and not moves and any(x.dim() for x in inputs if not isinstance(x, DeviceTensor)):
        raise RuntimeError(f"{name} takes tensors of the CPU and of the emulated device.")
    if device == DEVICE:
        options = {**options, "device": torch.device("cpu")}
    plain = tree_map(lambda x: x.values if isinstance(x, DeviceTensor) else x, (arguments, options))
    result = operation(*plain[0], **plain[1])
    if device not in (None, DEVICE):
        return result
    owners = {id(x.values): x for x in ours} | {id(x): x for x in inputs if not isinstance(x, DeviceTensor)}
    wrap = lambda x: owners[id(x)] if id(x) in owners else DeviceTensor(x)  # noqa: E731
    return tree_map(lambda x: wrap(x) if isinstance(x, Tensor) else x, result)


def on_device(tensor, data, device=None, **options):
    """Return what torch.tensor returns. It gives no values to a tensor of the meta device, and no mode sees it."""
    return tensor(data, **options).to("cpu" if device is None else device)


def new_tensor(x, data, **options):
    """Return what `x.new_tensor(data, **options)` returns."""
    return torch.tensor(data, **{"dtype": x.dtype, "device": x.device, **options})


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Emulate the device within a context, and return its name."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # parameters become tensors of another class
    try:
        with pytest.MonkeyPatch.context() as patch, Emulation():
            patch.setattr(dtype, "WITHOUT_FLOAT64", {DEVICE.type})
            patch.setattr(torch, "tensor", partial(on_device, torch.tensor))
            patch.setattr(Tensor, "new_tensor", new_tensor)
            yield DEVICE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
