"""Launch parameters of the Triton kernels: block sizes, constants to compile for, and parts of a sum.

Importing this module imports Triton. `device` does so at its first use.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # as triton.jit reads it at import

SHORT = 10  # bits of a number of tokens below which all block sizes are equally fast: one is compiled, none is timed


def autotuned(
    *blocks: tuple[int, int, int, int],
    restore: tuple[str, ...] = (),
    names: tuple[str, str] = ("BLOCK_F", "BLOCK_N"),
    key: tuple[str, ...] = ("D", "DV", "M", "P", "ORDER", "PRECISION", "BUCKET"),
) -> Callable[[Any], Any]:
    """Decorate a kernel with `triton.jit` and autotuning over block sizes.

    The choice is made for each head width, number of features and power of two of tokens, from 1,024 tokens on. Exact
    float32 products run without the matrix units, and large blocks of them outside the registers, so that their blocks
    are smaller. The interpreter has one small block size, so that tests meet many blocks.

    Args:
        blocks: (BLOCK_F features, BLOCK_N tokens, warps, stages) of each configuration.
        restore: names of arguments that the kernel adds to, restored between trials.
        names: names of the two block sizes.
        key: names of the arguments that the choice is made for.
    """
    exact = [(32, 32, 4, 1), (32, 32, 8, 1), (32, 64, 8, 1), (64, 32, 8, 1)]
    if INTERPRETED.value:
        blocks, exact = ((16, 64, 1, 1),), []
    configs = [
        triton.Config(dict(zip(names, (f, n), strict=True)), num_warps=w, num_stages=s)
        for f, n, w, s in [*blocks, *exact]
    ]

    def prune(configs: list[Any], arguments: dict[str, Any], **constants: Any) -> list[Any]:
        fitting = configs[len(blocks) :] if constants["PRECISION"] == "ieee" else configs[: len(blocks)]
        return fitting[:1] if constants["BUCKET"] <= SHORT else fitting

    def wrap(kernel: Any) -> Any:
        options = {"restore_value": list(restore) or None, "prune_configs_by": {"early_config_prune": prune}}
        return QuickLaunch(triton.autotune(configs, list(key), **options)(triton.jit(kernel)))

    return wrap


class QuickLaunch:
    """A kernel whose later launches take the program that the first launch of such arguments has compiled.

    To find the program, Triton looks at each argument and each option. That takes several times as long as a kernel
    does on a short sequence. A program depends on the constants, the types of the tensors, and whether their addresses
    are multiples of 16 bytes. Of each integer it depends on its being 1, a multiple of 16, and within 32 bits.

    A launch passes no strides. Those of a tensor `k` along its first axes are `stride_kb`, `stride_kh` and `stride_kn`
    in the kernel. The arguments of a kernel with strides are tensors, numbers, the strides, and then all others.

    Args:
        kernel: result of `triton.jit` or `triton.autotune`.
    """

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.programs: dict[Any, tuple[Any, dict[str, int], tuple[Any, ...]]] = {}
        names = list(kernel.arg_names)
        strides = [name for name in names if name.startswith("stride_")]
        axes = Counter(name[len("stride_") : -1] for name in strides)  # number of strides of each tensor
        self.strided = [(names.index(tensor), count) for tensor, count in axes.items()]
        self.first_stride = names.index(strides[0]) if strides else 0
        expected = [f"stride_{tensor}{axis}" for tensor, count in axes.items() for axis in "bhn"[:count]]
        assert names[self.first_stride :][: len(strides)] == expected, f"strides of a kernel out of order: {strides}"

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *tensors, **others: self.launch(grid, tensors, others)

    def launch(self, grid: Any, tensors: tuple[Tensor, ...], others: dict[str, Any]) -> None:
        """Launch the kernel.

        Args:
            grid: numbers of programs, three or fewer, or a function that returns them from the constants by name.
            tensors: tensors in the kernel's order, on one device.
            others: all other arguments by name, except strides and the arguments that autotuning chooses.
        """
        numbers = [others.pop(name) for name in self.kernel.arg_names[len(tensors) : self.first_stride]]
        for index, axes in self.strided:
            numbers += tensors[index].stride()[:axes]
        types, aligned = [x.dtype for x in tensors], [x.data_ptr() % 16 == 0 for x in tensors]
        key = (tensors[0].device.index, *types, *aligned, *map(kind, numbers), *others.items())
        if key not in self.programs:
            program = self.kernel[grid](*tensors, *numbers, **others)
            if hasattr(program, "packed_metadata"):  # not so with the interpreter or a recorder of tests
                chosen = getattr(self.kernel, "best_config", None)
                constants = others | (chosen.kwargs if chosen is not None else {})
                rest = tuple(constants[name] for name in self.kernel.arg_names[len(tensors) + len(numbers) :])
                self.programs[key] = program, constants, rest
            return
        program, constants, rest = self.programs[key]
        sizes = grid(constants) if callable(grid) else grid
        program[(*sizes, 1, 1)[:3]](*tensors, *numbers, *rest)


def kind(number: Any) -> Any:
    """Return the properties of a number that a program depends on."""
    if isinstance(number, int):
        return (number == 1) + 2 * (number % 16 == 0) + 4 * (-(2**31) <= number < 2**31)
    return type(number)


def compile_constants(
    q: Tensor, v: Tensor, weight: Tensor, c: Tensor | None, order: int, precision: str
) -> dict[str, Any]:
    """Return the constants that every kernel is compiled for, from the arguments of `forward`.

    Matrix units take no side below 16, so that halves of a head and values are padded to it.
    """
    (tokens, d), dv = q.shape[2:], v.shape[-1]
    half, value = max(16, triton.next_power_of_2(d // 2)), max(16, triton.next_power_of_2(dv))
    shape = {"D": d, "HALF": half, "DV": dv, "WIDE": value, "BUCKET": max(SHORT, tokens.bit_length())}
    return {**shape, "M": weight.shape[1], "P": 0 if c is None else c.shape[-1], "ORDER": order, "PRECISION": precision}


def count_splits(heads: int, features: int, tokens: int, x: Tensor) -> int:
    """Return the number of parts of a sum over tokens, for about four programs on each multiprocessor in all.

    Args:
        heads: number B H of heads of all samples.
        features: number m of features.
        tokens: number N of tokens.
        x: tensor on the device.
    """
    if x.device.type != "cuda":
        return min(2, triton.cdiv(tokens, 32))
    wanted = 4 * torch.cuda.get_device_properties(x.device).multi_processor_count
    return max(1, min(triton.cdiv(wanted, heads * triton.cdiv(features, 128)), triton.cdiv(tokens, 256)))
