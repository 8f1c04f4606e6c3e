"""The one reader of checkpoint files, with errors that say what is wrong with them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch

from performer_string.utils.renames import rename_weights

FILES = ("checkpoints/last.ckpt", "checkpoints/best.ckpt")  # in the folder of a run, in order of preference


class CheckpointError(ValueError):
    """A checkpoint that cannot be used."""


def find_checkpoint(path: str | PathLike[str]) -> Path:
    """Return the path of a checkpoint file, or that of the last checkpoint of a run whose folder it is."""
    path = Path(path).expanduser()
    return next((path / name for name in FILES if (path / name).is_file()), path)


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the content of a checkpoint of `python -m train`, with weights under the names of today.

    Only tensors and plain values are loaded (`weights_only=True`), so that a file cannot run code.

    Args:
        path: of the file, as `runs/NAME/checkpoints/last.ckpt`.

    Raises:
        CheckpointError: there is no such file, or it is damaged or of another kind, such as a `state_dict` alone, which
            does not say what model it is of.
    """
    path = Path(path)
    if not path.is_file():
        hint = f" It is the folder of a run: give {path / FILES[0]}." if find_checkpoint(path) != path else ""
        if not hint and path.is_dir() and any(find_checkpoint(each) != each for each in path.iterdir()):
            hint = f" It is a folder of runs: give {path}/*/{FILES[0]}."
        raise CheckpointError(f"there is no checkpoint {path}.{hint}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types here: pickle, zip, end of file, key
        raise CheckpointError(
            f"{path} is not a checkpoint that can be read: it is cut off, damaged, or another kind of file "
            f"({type(error).__name__})."
        ) from error
    if not isinstance(content, dict) or not content.keys() >= {"hyper_parameters", "state_dict"}:
        raise CheckpointError(
            f"{path} is no checkpoint of `python -m train`: it lacks hyper_parameters or state_dict. Weights alone go "
            f"into a model of the same configuration: ViT(config).load_state_dict(torch.load(path))."
        )
    for weights in ("state_dict", "current_model_state"):  # the second beside an average of the weights
        if weights in content:
            rename_weights(content[weights])
    return content
