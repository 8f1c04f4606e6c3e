"""What is in a checkpoint file, with errors that say what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from performer_string import ViTConfig
from train.files import CHECKPOINTS, LAST, latest_checkpoint


class CheckpointError(ValueError):
    """A checkpoint that cannot be used."""


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint file, loaded with `weights_only=True`."""
    path = Path(path)
    if not path.is_file():
        inside = latest_checkpoint(path)
        hint = "" if inside is None else f" It is the folder of a run: give {inside}."
        if inside is None and path.is_dir() and any(map(latest_checkpoint, path.iterdir())):
            hint = f" It is a folder of runs: give {path}/*/{CHECKPOINTS}/{LAST}."
        raise CheckpointError(f"there is no checkpoint {path}.{hint}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types here: pickle, zip, end of file, key
        raise CheckpointError(
            f"{path} is not a checkpoint that can be read: it is cut off, damaged, or another kind of file "
            f"({type(error).__name__})."
        ) from error
    keys = {"state_dict", "hyper_parameters", "ImageData"}
    if not isinstance(content, dict) or not keys <= content.keys():
        raise CheckpointError(f"{path} is not a checkpoint of this project: it has to hold {', '.join(sorted(keys))}.")
    return content


def config_of(content: dict[str, Any], **overrides: Any) -> ViTConfig:
    """The model's configuration in a checkpoint."""
    try:
        return ViTConfig.of_checkpoint(content["hyper_parameters"]["vit"], **overrides)
    except ValueError as error:
        if not str(error).startswith("unknown "):
            raise
        raise ValueError(f"{error} One of your own has to be imported first: --imports MODULE.") from None
