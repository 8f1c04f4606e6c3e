"""Trace a model as one graph for any batch and image size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.export import Dim, ExportedProgram

from performer_string import ViT
from train.data.sizes import Size

LARGEST_BATCH = 65_536
LARGEST_GRID = 1_024  # most patches along a side


class ExportError(ValueError):
    """A model that cannot be exported."""


def parts(model: ViT) -> str:
    """Return the kinds and names of the parts of a model, in which an operation may be that cannot be exported."""
    c = model.config
    kinds = {"encoding": c.encoding, "value map": c.values, "distance decay": c.locality}
    found = [f"{kind} {name!r}" for kind, name in kinds.items() if name]
    for kind in c.kinds_of_attention():
        found.append(f"{kind} attention" + ("" if kind == "softmax" else f" with feature map {c.feature_map!r}"))
    return ", ".join(found)


def export_error(model: ViT, error: Exception, target: str) -> ExportError:
    """Return the error for a model that cannot be exported, which names its parts and the operation at fault.

    Args:
        model: the model.
        error: error of torch.
        target: name of the format that it could not be converted to.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    text = "\n".join(map(str, chain))
    names = re.findall(r"aten[.:]+_?(\w+)", text)
    reason = f"{target} has no operation {names[-1]}" if names and "No ONNX function" in text else first_line(chain[-1])
    hint = "" if getattr(model.encoding, "is_folded", True) else " With --fold no basis of the encoding is computed."
    return ExportError(f"a model with {parts(model)} cannot be exported to {target}: {reason}.{hint}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0][:200]}".rstrip(".")


def dynamic_shapes(model: ViT, sizes: Sequence[Size]) -> dict[str, Any]:
    """Return the dynamic dimensions of the images: the batch, and both sides where there are several sizes."""
    dims: dict[int, Any] = {0: Dim("batch", min=1, max=LARGEST_BATCH)}
    if len(sizes) > 1:
        for axis, (name, patch) in enumerate(zip(("rows", "columns"), model.patch, strict=True), 2):
            dims[axis] = patch * Dim(name, min=1, max=LARGEST_GRID)
    return {"images": dims}


def trace(model: ViT, sizes: Sequence[Size]) -> ExportedProgram:
    """Return the graph of a model.

    Args:
        model: model in evaluation mode.
        sizes: sizes of images in pixels; with one size the graph takes only that size, with several any size.

    Raises:
        ExportError: a model that cannot be traced.
    """
    size = max(sizes, key=lambda each: each.height * each.width)  # the smallest may have sides of one patch
    images = torch.zeros(2, model.config.in_channels, *size)
    target = "a graph for any size of images" if len(sizes) > 1 else "a graph"
    try:
        with torch.no_grad():
            program = torch.export.export(model, (images,), dynamic_shapes=dynamic_shapes(model, sizes))
    except Exception as error:  # torch raises many types
        raise export_error(model, error, target) from error
    check_sizes(model, program, sizes)
    return program


def check_sizes(model: ViT, program: ExportedProgram, sizes: Sequence[Size]) -> None:
    """Raise an ExportError where a graph takes only the size it was traced with, which torch reports late."""
    function = program.module()
    for size in sizes:
        try:
            outputs(function, torch.zeros(1, model.config.in_channels, *size))
        except (AssertionError, RuntimeError) as error:  # a failed guard
            raise ExportError(
                f"a model with {parts(model)} has a graph for one size of images alone: export a file for each size, "
                f"with one value of --resolutions."
            ) from error


def outputs(function: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the logits of a model or program for images."""
    with torch.no_grad():
        return cast(torch.Tensor, function(images))
