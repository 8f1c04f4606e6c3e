"""Trace a model as one graph for any batch and image size, and name the part that prevents it."""

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


def parts(model: ViT) -> dict[str, str]:
    """Return the parts of a model: from the prefix of a module's path to the kind and name of the part.

    `{}` stands for the index of a layer.
    """
    c = model.config
    found = {"encoding": f"encoding {c.encoding!r}"}
    if c.values:
        found["blocks.{}.attention.values"] = f"value map {c.values!r}"
    if c.locality:
        found["blocks.{}.attention.locality"] = f"distance decay {c.locality!r}"
    for layer in range(len(model.blocks)):
        kind = c.attention_of(layer)
        features = "" if kind == "softmax" else f" with feature map {c.feature_map!r}"
        found[f"blocks.{layer}.attention"] = f"{kind} attention{features}"
    return found


def part_of(model: ViT, path: str) -> str:
    """Return the kind and name of the part that a module belongs to; empty outside parts that a recipe chooses."""
    for beginning, name in parts(model).items():
        pattern = re.escape(beginning).replace(r"\{\}", r"\d+")
        if re.match(rf"(?:L__self___)?{pattern}(\.|$)", path):
            return name
    return ""


def parts_using(model: ViT, program: ExportedProgram | None, operation: str) -> str:
    """Return the parts of a model that use an operation, or all parts where none is found.

    Args:
        model: the model.
        program: graph of the model; None where there is none.
        operation: name of the operation, such as `linalg_inv_ex`, also in a decomposed graph.
    """
    wanted = operation.removeprefix("linalg_")  # linalg_matrix_exp was matrix_exp, and linalg_inv_ex linalg_inv
    nodes = () if program is None or not operation else program.graph.nodes
    found: dict[str, None] = {}
    for node in nodes:
        name = str(node.target).removeprefix("aten.").partition(".")[0].removeprefix("linalg_")
        if node.op == "call_function" and (name.startswith(wanted) or wanted.startswith(name)):
            for path, _ in reversed(node.meta.get("nn_module_stack", {}).values()):
                if part := part_of(model, path):
                    found[part] = None
                    break
            else:  # the model calls its encoding without hooks, which tell where an operation is
                found[parts(model)["encoding"]] = None
    return ", ".join(found) or ", ".join(parts(model).values())


def export_error(model: ViT, error: Exception, program: ExportedProgram | None, target: str) -> ExportError:
    """Return the error for a model that cannot be exported, which names the part at fault.

    Args:
        model: the model.
        error: error of torch.
        program: graph that could not be converted; None where tracing failed.
        target: name of the format that it could not be converted to.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    text = "\n".join(map(str, chain))
    names = re.findall(r"aten[.:]+_?(\w+)", text)
    part = parts_using(model, program, names[-1] if names else "")
    reason = f"{target} has no operation {names[-1]}" if names and "No ONNX function" in text else first_line(chain[-1])
    foldable = part.startswith("encoding") and not getattr(model.encoding, "is_folded", True)
    hint = " With --fold no basis of the encoding is left to compute." if foldable else ""
    return ExportError(f"{part} cannot be exported to {target}: {reason}.{hint}")


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
        raise export_error(model, error, None, target) from error
    check_sizes(model, program, sizes)
    return program


def check_sizes(model: ViT, program: ExportedProgram, sizes: Sequence[Size]) -> None:
    """Raise an ExportError where a graph takes only the size it was traced with, which torch reports late."""
    function = program.module()
    for size in sizes:
        try:
            outputs(function, torch.zeros(1, model.config.in_channels, *size))
        except (AssertionError, RuntimeError) as error:  # a failed guard
            c = model.config
            kinds = {"value map": c.values, "distance decay": c.locality}
            part = next((f"{kind} {name!r}" for kind, name in kinds.items() if name), ", ".join(parts(model).values()))
            raise ExportError(
                f"{part} has a graph for one size of images alone: export a file for each size, with one value of "
                "--resolutions."
            ) from error


def outputs(function: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the logits of a model or program for images."""
    with torch.no_grad():
        return cast(torch.Tensor, function(images))
