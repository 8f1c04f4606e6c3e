"""What the Triton kernels ask of a GPU, by compiling them: registers, spills, shared memory, matrix instructions, and
how many programs fit side by side on a multiprocessor. No GPU is needed, so that this also says, without one, whether
the kernels compile at all; how fast they are it does not say.

Each kernel is compiled for every block size that autotuning would try, as one forward and backward pass launches it:
every dimension turning, gradients of the planes, no mask.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm

from eval.arguments import positive
from eval.report import Row, save_figure
from performer_string.ops.triton.api import HIGHEST_ORDER, WIDEST

HELP = "registers, spills and shared memory of each Triton kernel and block size, compiled without a GPU"
ON_CPU = True

# KiB of shared memory of a multiprocessor, of which each program takes one more than it asks for; and its warps.
CAPABILITIES = {"80": (164, 64), "86": (100, 48), "89": (100, 48), "90": (228, 64), "100": (228, 64), "120": (100, 48)}
REGISTERS = 65536
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
BATCH, HEADS, TOKENS = 2, 6, 4096
SAME = ("capability", "dtype", "triton")  # columns of one value, left out on the terminal

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--capability", choices=CAPABILITIES, default="90", help="90: H100 and H200; 80: A100")
    parser.add_argument("--head-dims", type=positive, nargs="+", default=[64, 128])
    parser.add_argument("--features", type=positive, nargs="+", default=[256])
    parser.add_argument("--orders", type=int, nargs="+", default=[0, 4], help="of the powers; 0 for exponentials")
    parser.add_argument("--dtype", choices=TYPES, default="bfloat16")
    parser.add_argument("--first", action="store_true", help="only the first block size of each kernel")


class Recorder:
    """Stands for a kernel and notes what it is called with."""

    def __init__(self, kernel: Any, launches: list[Launch]):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **constants: self.launches.append((self.kernel, arguments, constants))


def launches(dtype: torch.dtype, d: int, features: int, order: int) -> list[Launch]:
    """The kernels of a forward and backward pass with their arguments, none of them run."""
    from triton.runtime import KernelInterface

    names = ("triton_forward", "triton_backward")
    forward, backward = (importlib.import_module(f"performer_string.kernels.{name}") for name in names)
    found: list[Launch] = []

    q, k, v, dout = torch.empty(4, BATCH, HEADS, TOKENS, d, dtype=dtype).unbind(0)
    weight = torch.empty(HEADS, features, d, dtype=dtype)
    c, s = torch.empty(2, BATCH, HEADS, TOKENS, d // 2).unbind(0)
    settings = order, 0.1, "ieee" if dtype == torch.float32 else "tf32"
    with ExitStack() as stack:
        for module in (forward, backward):
            kernels = {name: x for name, x in vars(module).items() if isinstance(x, KernelInterface)}
            for name, kernel in kernels.items():
                stack.enter_context(mock.patch.object(module, name, Recorder(kernel, found)))
        saved = forward.forward(q, k, v, weight, c, s, None, None, *settings)
        backward.backward(dout, q, k, v, weight, c, s, None, None, saved, *settings, True)
    return found


def configurations(kernel: Any, constants: dict[str, Any]) -> list[tuple[dict[str, int], dict[str, int]]]:
    """(Block sizes, warps and stages) that autotuning tries; Triton's defaults for a kernel that is not tuned."""
    if not hasattr(kernel, "configs"):
        return [({}, {"num_warps": 4, "num_stages": 3})]
    tried = kernel.early_config_prune(kernel.configs, {}, **constants)
    return [(c.kwargs, {"num_warps": c.num_warps, "num_stages": c.num_stages}) for c in tried]


def compiled(launch: Launch, blocks: dict[str, int], options: dict[str, int], capability: str) -> Any:
    """A kernel for these arguments, specialised as a launch would: to ones, and to multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, arguments, constants = launch
    function = kernel.fn if hasattr(kernel, "configs") else kernel
    values = dict(zip(function.arg_names, arguments, strict=False)) | constants | blocks
    signature, fixed, attributes = {}, {}, {}
    for parameter in function.params:
        value, place = values[parameter.name], (parameter.num,)
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[parameter.name], fixed[place] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[str(value.dtype).removeprefix("torch.")]
        else:
            signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[place] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, fixed, attributes)
    return triton.compile(source, target=GPUTarget("cuda", int(capability), 32), options=options)


def usage(cubin: bytes) -> tuple[int, int]:
    """(Registers a thread, bytes a thread that do not fit into them), from the compiled program."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        told = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.findall(rf"{name}:(\d+)", told)[-1]) for name in ("REG", "STACK", "LOCAL"))
    return registers, stack + local


def side_by_side(registers: int, shared: float, warps: int, capability: str) -> int:
    """How many programs a multiprocessor holds at a time; 0 where one does not fit. `shared` in KiB."""
    memory, most = CAPABILITIES[capability]
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32 * warps)
    return int(min(by_registers, memory // (shared + 1), most // warps))


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise ValueError("TRITON_INTERPRET=1 is set, under which Triton compiles nothing; unset it.")
    try:
        import triton
    except ImportError:
        raise ValueError("Triton is not installed; it comes with torch for CUDA, or: pip install triton") from None
    if any(d % 2 or d > WIDEST for d in options.head_dims):
        raise ValueError(f"--head-dims are even and at most {WIDEST} in these kernels, not {options.head_dims}.")
    if any(not 0 <= order <= HIGHEST_ORDER for order in options.orders):
        raise ValueError(f"--orders are 0 (exponentials) to {HIGHEST_ORDER} in these kernels, not {options.orders}.")
    dtype = getattr(torch, options.dtype)
    work = [
        (d, m, order, launch, *configuration)
        for d in options.head_dims
        for m in options.features
        for order in options.orders
        for launch in launches(dtype, d, m, order)
        for configuration in configurations(launch[0], launch[2])[: 1 if options.first else None]
    ]
    for d, m, order, launch, blocks, settings in tqdm(work, desc="compiling", leave=False, disable=None):
        program = compiled(launch, blocks, settings, options.capability)
        registers, spilled = usage(program.asm["cubin"])
        shared, assembly = program.metadata.shared / 1024, program.asm["ptx"]
        yield {
            "kernel": program.metadata.name,
            "order": order,
            "d": d,
            "features": m,
            "BLOCK_F": blocks.get("BLOCK_F", launch[2].get("BLOCK_F")),
            "BLOCK_N": blocks.get("BLOCK_N", ""),
            "warps": settings["num_warps"],
            "stages": settings["num_stages"],
            "registers": registers,
            "spilled bytes": spilled,
            "shared KiB": round(shared, 1),
            "side by side": side_by_side(registers, shared, settings["num_warps"], options.capability),
            "wgmma": assembly.count("wgmma.mma_async"),
            "mma": assembly.count("mma.sync"),
            "capability": options.capability,
            "dtype": options.dtype,
            "triton": triton.__version__,
        }


def summary(found: Sequence[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in SAME} for row in found]


def plot(found: Sequence[Row], path: Path) -> None:
    """Registers and shared memory of a program, with the lines below which 1, 2, 3 and 4 of them fit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5))
    axis = figure.subplots()
    memory = CAPABILITIES[found[0]["capability"]][0]
    for kernel in dict.fromkeys(row["kernel"] for row in found):
        own = [row for row in found if row["kernel"] == kernel]
        asked = [32 * row["warps"] * row["registers"] / 1024 for row in own]
        axis.plot([row["shared KiB"] for row in own], asked, "o", label=kernel, alpha=0.7)
    for programs in (1, 2, 3, 4):
        x, y = memory / programs - 1, REGISTERS / 1024 / programs  # the system has 1 KiB of each program
        axis.plot([0, x, x], [y, y, 0], color="grey", linewidth=0.8)
        axis.annotate(f"{programs} side by side", (0, y), fontsize=7, color="grey", va="bottom")
    axis.set(xlabel="shared memory of a program, KiB", ylabel="registers of a program, thousands of 1,024")
    axis.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path)
