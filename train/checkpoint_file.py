"""Read checkpoints, with helpful errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from performer_string import ViTConfig
from performer_string.images.preprocessing import Preprocessing
from performer_string.models.files import checkpoint as models
from performer_string.models.files.checkpoint import CheckpointError
from train.utils.imports import naming_imports

KEYS = {"state_dict", "hyper_parameters", "ImageData"}


def read_checkpoint(path: str | Path, data: bool = True) -> dict[str, Any]:
    """Return the content of a checkpoint, or of a published model, with current names of weights.

    Args:
        path: path of the file.
        data: whether the file must contain the data settings of the training.

    Raises:
        CheckpointError: a file that is missing, damaged or of another kind.
    """
    with naming_imports():  # the configuration of a published model is checked here
        content = models.read_checkpoint(path)
    if "published" in content:
        if data and "ImageData" not in content:
            raise CheckpointError(
                f"{Path(path).parent} does not say what images the model was trained on: save_pretrained cannot know. "
                f"A folder that python -m train.publish RUN DIR writes does."
            )
        return content
    if not content.keys() >= KEYS:
        raise CheckpointError(f"{path} is not a checkpoint of this project: it must hold {', '.join(sorted(KEYS))}.")
    return content


def early_stopping_states(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the states of the `EarlyStopping` callbacks in a checkpoint."""
    return [state for name, state in content.get("callbacks", {}).items() if name.startswith("EarlyStopping")]


def vit_config(content: dict[str, Any], **overrides: Any) -> ViTConfig:
    """Return the configuration of the model in a checkpoint.

    Args:
        content: content of the checkpoint.
        overrides: fields that replace those of the checkpoint.
    """
    with naming_imports():
        return ViTConfig.of_checkpoint(content["hyper_parameters"]["vit"], **overrides)


def classes_of(content: dict[str, Any]) -> list[str]:
    """Return the names of the classes of the model in a checkpoint; none where they are not known."""
    preprocessing = Preprocessing.of_checkpoint(content)
    known = () if preprocessing is None else preprocessing.classes
    return list(known or content.get("ImageData", {}).get("classes") or ())
