"""The folder of a published model: `model.safetensors` with its weights, and `config.json` with all else.

    {"format": "performer_string", "format_version": 1,
     "versions": {"performer_string": "0.1.0", "torch": "2.14.1", "python": "3.12.3"},
     "vit": the fields of `ViTConfig`,
     "preprocessing": the fields of `Preprocessing`, or null,
     "metrics": a list of accuracies, each with its split and resolution,
     "command": the command that trained the model, or null,
     "training": facts on the data and the training that an evaluation needs, or null}

Nothing of such a folder is executed: weights are read from safetensors alone, and pickles are refused.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from performer_string.models.config import ViTConfig
from performer_string.models.files.paths import CONFIG, WEIGHTS
from performer_string.models.files.weights import PublishedError, read_weights
from performer_string.utils.files import write_aside
from performer_string.utils.registry import nearest

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT

FORMAT, FORMAT_VERSION = "performer_string", 1
FIELDS = ("format", "format_version", "versions", "vit", "preprocessing", "metrics", "command", "training")
LARGEST_CONFIG = 10_000_000  # bytes


def check_savable(model: ViT) -> None:
    """Raise a ValueError where the configuration does not describe the model, so that it could not be loaded again."""
    classes = () if model.preprocessing is None else model.preprocessing.classes
    if classes and model.config.head == "class" and len(classes) != model.config.num_classes:
        raise ValueError(
            f"model.preprocessing names {len(classes)} classes, and the model has {model.config.num_classes}: name "
            f"these, or none."
        )
    with torch.random.fork_rng(devices=[]):  # initial values are drawn
        fresh = type(model)(model.config)
    expected, found = structure(fresh), structure(model)
    found.pop("encoding.folded", None)
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise ValueError(
            f"the model is not what its configuration describes, so that it could not be loaded again: "
            f"{', '.join(wrong[:5])}{', ...' if len(wrong) > 5 else ''}. Merge adapters and remove parametrizations, "
            f"and set model.config where you have changed the head."
        )


def structure(model: ViT) -> dict[str, Any]:
    """Return the types of a model's modules and the shapes of its tensors, by name."""
    modules: dict[str, Any] = {name: type(module) for name, module in model.named_modules(remove_duplicate=False)}
    # An entry that is no tensor is of a quantised module.
    return modules | {name: getattr(value, "shape", value) for name, value in model.state_dict().items()}


def write_config(model: ViT, folder: Path, **more: Any) -> None:
    """Write the configuration of a model.

    Args:
        model: model to describe.
        folder: folder to write into.
        more: values of the fields `metrics`, `command` and `training`.
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


def read_published(path: Path) -> dict[str, Any]:
    """Return a published model as `python -m train` has it in its checkpoints.

    Args:
        path: path of its `model.safetensors`.

    Returns:
        `state_dict`, `hyper_parameters`, `preprocessing`; `ImageData` and `global_step` where the training is known;
        and `published`, the other fields of `config.json`, with `shared` names.

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
