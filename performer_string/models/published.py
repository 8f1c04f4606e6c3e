"""The folder of a published model: `model.safetensors` with its weights, and `config.json` with all else.

    {"format": "performer_string", "format_version": 1,
     "versions": {"performer_string": "0.1.0", "torch": "2.14.1", "python": "3.12.3"},
     "vit": the fields of `ViTConfig`,
     "preprocessing": the fields of `Preprocessing`, or null,
     "metrics": a list of accuracies, each with its split and resolution,
     "command": that trained it, or null,
     "training": what an evaluation has to know of the data and the training, or null}

Nothing of such a folder is executed: weights are read from safetensors alone, and pickles are refused.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from performer_string.models.config import ViTConfig, patch_and_image
from performer_string.utils.files import write_aside
from performer_string.utils.registry import nearest

if TYPE_CHECKING:
    from performer_string.models.vit import ViT

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT, FORMAT_VERSION = "performer_string", 1
FIELDS = ("format", "format_version", "versions", "vit", "preprocessing", "metrics", "command", "training")
NARROWED = "float32"  # of the file's metadata: tensors of bfloat16 that are of float32 in the model
LARGEST_CONFIG = 10_000_000  # bytes
INSTALL = "pip install huggingface_hub safetensors"


class PublishedError(ValueError):
    """A published model that cannot be used."""


def safetensors() -> Any:
    """Return the package, or raise an ImportError that says how to install it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f"files of published models need safetensors: {INSTALL}") from error
    return safetensors


def separate(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, contiguous and in storage of its own, and by which name shared ones are saved.

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


def check_savable(model: ViT) -> None:
    """Raise a ValueError where the configuration does not describe the model, so that it could not be loaded again."""
    with torch.random.fork_rng(devices=[]):  # initial values are drawn
        fresh = type(model)(model.config)
    expected = {name: tuple(value.shape) for name, value in fresh.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in model.state_dict().items() if name != "encoding.folded"}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise ValueError(
            f"the model is not what its configuration describes, so that it could not be loaded again: "
            f"{', '.join(wrong[:5])}{', ...' if len(wrong) > 5 else ''}. Merge adapters and remove parametrizations, "
            f"and set model.config where you have changed the head."
        )


def write_weights(model: ViT, folder: Path) -> None:
    """Write the weights and buffers of a model, in their types.

    Values of float32 that are all of bfloat16, as `round_weights` makes them, take half the room and come back exactly.
    """
    tensors, shared = separate(model.state_dict())
    metadata = {"format": "pt", "shared": json.dumps(shared)}
    wide = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    if wide and all(torch.equal(tensor.bfloat16().float(), tensor) for tensor in wide.values()):
        tensors |= {name: tensor.bfloat16() for name, tensor in wide.items()}
        metadata[NARROWED] = json.dumps(sorted(wide))
    with write_aside(folder / WEIGHTS) as partial:
        partial.write_bytes(safetensors().torch.save(tensors, metadata))  # its own files are for their owner alone


def round_weights(model: ViT) -> ViT:
    """Round all values of float32 to those of bfloat16, in place: the file is half as large. Return the model.

    It computes in float32 as before.
    """
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.dtype == torch.float32:
                tensor.copy_(tensor.bfloat16())
    return model


def write_config(model: ViT, folder: Path, **more: Any) -> None:
    """Write the configuration of a model.

    Args:
        model: the model.
        folder: where to.
        more: values of `metrics`, `command` and `training`.
    """
    from performer_string import __version__

    versions = {"performer_string": __version__, "torch": torch.__version__, "python": platform.python_version()}
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": versions,
        "vit": asdict(model.config),
        "preprocessing": None if model.preprocessing is None else model.preprocessing.plain(),
        **{"metrics": [], "command": None, "training": None, **more},
    }
    with write_aside(folder / CONFIG) as partial:
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of `config.json`.

    Raises:
        PublishedError: no such file, a damaged one, that of another program, or fields that this version lacks.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise PublishedError(f"there is no {path}, which says what model {WEIGHTS} is of.")
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise ValueError(f"it has more than {LARGEST_CONFIG} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PublishedError(f"{path} cannot be read as JSON ({error}): it is damaged.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PublishedError(f"{path} is not of performer_string: it has no field format with {FORMAT!r}.")
    version = content.get("format_version")
    written = content.get("versions")
    by = f"performer_string {written.get('performer_string')}" if isinstance(written, dict) else "another version"
    if version != FORMAT_VERSION:
        raise PublishedError(
            f"{path} was written by {by} in format {version}, and this version reads format {FORMAT_VERSION}: update "
            f"performer_string."
        )
    for name in content.keys() - set(FIELDS):
        raise PublishedError(
            f"{path}, written by {by}, has a field {name!r}, which this version does not know."
            f"{nearest(name, FIELDS)} Load it with the version that wrote it."
        )
    if not isinstance(content.get("vit"), dict):
        raise PublishedError(f"{path} lacks vit, the configuration of the model.")
    return content


def check_sizes(config: ViTConfig, shapes: Mapping[str, list[int]], path: Path) -> None:
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
    """Return the tensors of a file, and by which names those are saved that the model shares.

    Raises:
        PublishedError: no file of safetensors, a damaged one, or one of another model.
    """
    if not path.is_file():
        raise PublishedError(f"there is no {path}. Weights in another format, such as a pickle, are not read.")
    opener = safetensors().safe_open
    try:
        with opener(path, "pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            check_sizes(config, shapes, path)
            shared = json.loads((file.metadata() or {}).get("shared", "{}"))
            tensors = {name: file.get_tensor(name) for name in shapes}
            for name in json.loads((file.metadata() or {}).get(NARROWED, "[]")):
                tensors[name] = tensors[name].float()
    except PublishedError:
        raise
    except Exception as error:  # of the package's own type, of JSON, of the file system, of torch
        raise PublishedError(
            f"{path} is no safetensors file that can be read: it is cut off, damaged, or a file of another kind, which "
            f"is never loaded ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    if not isinstance(shared, dict) or not set(map(str, shared.values())) <= tensors.keys():
        raise PublishedError(f"{path} names shared weights that it does not hold: it is damaged.")
    return tensors, shared


def read_published(path: Path) -> dict[str, Any]:
    """Return a published model as `python -m train` has it in its checkpoints.

    Args:
        path: of its `model.safetensors`.

    Returns:
        `state_dict`, `hyper_parameters`, `preprocessing`; `ImageData` and `global_step` where the training is known;
        and `published`, what `config.json` holds beside them, with `shared` names.

    Raises:
        PublishedError: files that cannot be used.
        ValueError: a name or field that this version does not have.
    """
    content = read_config(path.parent)
    training = content.get("training") or {}
    tensors, shared = read_weights(path, ViTConfig.of_checkpoint(content["vit"]))
    tensors |= {name: tensors[first] for name, first in shared.items()}
    settings = {name: value for name, value in training.items() if name not in ("data", "steps")}
    result: dict[str, Any] = {
        "state_dict": {f"vit.{name}": value for name, value in tensors.items()},
        "hyper_parameters": {"vit": content["vit"], **settings},
        "published": {**{name: content.get(name) for name in ("versions", "metrics", "command")}, "shared": shared},
    }
    if content.get("preprocessing"):
        result["preprocessing"] = content["preprocessing"]
    if "data" in training:
        result |= {"ImageData": {"position": None, **training["data"]}, "global_step": training.get("steps")}
    return result


def take_types(model: ViT, weights: Mapping[str, Tensor]) -> None:
    """Convert the tensors of a model to the types of those that will be loaded into it."""
    if "norm.weight" in weights:
        model.to(weights["norm.weight"].dtype)  # and with it what is computed, such as frequencies
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in weights and weights[name].dtype != tensor.dtype:
            tensor.data = tensor.data.to(weights[name].dtype)


def share(model: nn.Module, shared: Mapping[str, str]) -> None:
    """Tie the weights that shared a tensor when the model was saved."""
    for name, first in shared.items():
        (parent, _, leaf), (other, _, of) = name.rpartition("."), first.rpartition(".")
        setattr(model.get_submodule(parent), leaf, getattr(model.get_submodule(other), of))
