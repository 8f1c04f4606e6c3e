"""The weights of a published model, `model.safetensors`: shared tensors once, values of bfloat16 in half the size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from performer_string.models.config import ViTConfig, patch_and_image
from performer_string.models.files.paths import WEIGHTS
from performer_string.utils.files import write_aside

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT

ROUNDED = "float32"  # key of the file's metadata: names of tensors in bfloat16 that the model has in float32
INSTALL = "pip install huggingface_hub safetensors"


class PublishedError(ValueError):
    """A published model that cannot be used."""


def safetensors() -> Any:
    """Return the package safetensors, or raise an ImportError that says how to install it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f"files of published models need safetensors: {INSTALL}") from error
    return safetensors


def separate(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, contiguous and in storage of its own, and the name under which each shared one is saved.

    Raises:
        ValueError: tensors of the meta device, which have no values.
    """
    first: dict[tuple[Any, ...], str] = {}
    tensors, shared = {}, {}
    for name, tensor in state.items():
        if tensor.is_meta:
            raise ValueError(f"{name} is on the meta device and has no values to save.")
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            shared[name] = first[key]
        else:
            first[key] = name
            tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors, shared


def write_weights(model: ViT, folder: Path) -> None:
    """Write the weights and buffers of a model, in their types.

    Values of float32 that are all of bfloat16, as `round_weights` makes them, take half the size and load exactly.
    """
    tensors, shared = separate(model.state_dict())
    metadata = {"format": "pt", "shared": json.dumps(shared)}
    wide = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    if wide and all(torch.equal(tensor.bfloat16().float(), tensor) for tensor in wide.values()):
        tensors |= {name: tensor.bfloat16() for name, tensor in wide.items()}
        metadata[ROUNDED] = json.dumps(sorted(wide))
    with write_aside(folder / WEIGHTS, synchronise=True) as partial:
        partial.write_bytes(safetensors().torch.save(tensors, metadata))  # `save_file` lets only the owner read


def round_weights(model: ViT) -> ViT:
    """Round float32 weights to bfloat16 values, in place, and return the model: its file is half as large.

    It computes in float32 as before.
    """
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.dtype == torch.float32:
                tensor.copy_(tensor.bfloat16())
    return model


def check_shapes(config: ViTConfig, shapes: Mapping[str, list[int]], path: Path) -> None:
    """Check main sizes of a configuration against a file of weights, before a model of that size is built.

    Raises:
        PublishedError: other sizes.
    """
    patch = patch_and_image(config.patch_size, config.image_size)[0]
    blocks = {match[1] for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))}
    found = {"embed.weight": shapes.get("embed.weight"), "blocks": len(blocks)}
    expected = {"embed.weight": [config.width, config.in_channels * math.prod(patch)], "blocks": config.depth}
    for name, value in found.items():
        if value != expected[name]:
            raise PublishedError(f"{path} does not fit the configuration beside it: {name} {value}, {expected[name]}.")


def read_weights(path: Path, config: ViTConfig) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, and the name under which each shared one is saved.

    Raises:
        PublishedError: no file of safetensors, a damaged one, or one of another model.
    """
    if not path.is_file():
        raise PublishedError(f"there is no {path}. Weights in another format, such as a pickle, are not read.")
    opener = safetensors().safe_open
    try:
        with opener(path, "pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            check_shapes(config, shapes, path)
            shared = json.loads((file.metadata() or {}).get("shared", "{}"))
            tensors = {name: file.get_tensor(name) for name in shapes}
            for name in json.loads((file.metadata() or {}).get(ROUNDED, "[]")):
                tensors[name] = tensors[name].float()
    except PublishedError:
        raise
    except Exception as error:  # an error of the package, JSON, the file system or torch
        raise PublishedError(
            f"{path} is no safetensors file that can be read: it is cut off, damaged, or a file of another kind, which "
            f"is never loaded ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    if not isinstance(shared, dict) or not set(map(str, shared.values())) <= tensors.keys():
        raise PublishedError(f"{path} names shared weights that it does not hold: it is damaged.")
    return tensors, shared


def take_types(model: ViT, weights: Mapping[str, Tensor]) -> None:
    """Convert the tensors of a model to the types of the weights to load."""
    if "norm.weight" in weights:
        model.to(weights["norm.weight"].dtype)  # and its computed buffers, such as frequencies
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in weights and weights[name].dtype != tensor.dtype:
            tensor.data = tensor.data.to(weights[name].dtype)


def share(model: nn.Module, shared: Mapping[str, str]) -> None:
    """Tie the weights that shared a tensor when the model was saved."""
    for name, first in shared.items():
        (parent, _, leaf), (other, _, of) = name.rpartition("."), first.rpartition(".")
        setattr(model.get_submodule(parent), leaf, getattr(model.get_submodule(other), of))
