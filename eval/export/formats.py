"""The formats of exported models: functions that write a file, and read it for the check."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from eval.export.program import export_error
from performer_string import ViT
from train.utils.output import silent

INSTALL = "pip install onnx onnxscript onnxruntime"
DETAILS = "performer_string.json"  # name of the metadata file in a program of torch.export
Function = Callable[[Tensor], Tensor]


def check_onnx() -> None:
    """Raise a ValueError with the install command where packages for ONNX are missing."""
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(f"an export to ONNX needs {error.name}: {INSTALL}") from error


def write_onnx(model: ViT, program: ExportedProgram, path: Path, details: Mapping[str, object]) -> None:
    """Write a graph as ONNX, with the input `images`, the output `logits`, and `details` as metadata.

    Raises:
        ExportError: an operation that ONNX lacks.
    """
    try:
        with silent(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():  # it prints its progress
            converted = torch.onnx.export(program, dynamo=True, input_names=["images"], output_names=["logits"])
    except Exception as error:  # the converter raises many types
        raise export_error(model, error, "ONNX") from error
    assert converted is not None
    converted.model.metadata_props.update({name: json.dumps(value) for name, value in details.items()})
    converted.save(path)


def read_onnx(path: Path) -> Function:
    """Return a function that runs an ONNX file with onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def write_torch(model: ViT, program: ExportedProgram, path: Path, details: Mapping[str, object]) -> None:
    """Write a graph as a program of `torch.export`, with `details` as a file in it."""
    torch.export.save(program, path, extra_files={DETAILS: json.dumps(details)})


def read_torch(path: Path) -> Function:
    """Return a function that runs a program of `torch.export`."""
    function: Function = torch.export.load(path).module()
    return function
