"""Read checkpoints, with errors that say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from performer_string import ViTConfig
from performer_string.models import checkpoint as models
from performer_string.models.checkpoint import CheckpointError
from train.utils.imports import naming_imports

KEYS = {"state_dict", "hyper_parameters", "ImageData"}


def read_checkpoint(path: str | Path, data: bool = True) -> dict[str, Any]:
    """Return the content of a checkpoint, or of a published model, with weights under the names of today.

    Args:
        path: of the file.
        data: whether it has to say what images the model was trained on.

    Raises:
        CheckpointError: there is no such file, or it is damaged or of another kind.
    """
    content = models.read_checkpoint(path)
    if "published" in content:
        if data and "ImageData" not in content:
            raise CheckpointError(
                f"{Path(path).parent} does not say what images the model was trained on: save_pretrained cannot know. "
                f"A folder that python -m train.publish RUN DIR writes does."
            )
        return content
    if not content.keys() >= KEYS:
        raise CheckpointError(f"{path} is not a checkpoint of this project: it has to hold {', '.join(sorted(KEYS))}.")
    return content


def vit_config(content: dict[str, Any], **overrides: Any) -> ViTConfig:
    """Return the model's configuration in the content of a checkpoint.

    Args:
        content: of the checkpoint.
        overrides: fields in place of those.
    """
    with naming_imports():
        return ViTConfig.of_checkpoint(content["hyper_parameters"]["vit"], **overrides)
