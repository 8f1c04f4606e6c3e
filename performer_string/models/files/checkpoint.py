"""The one reader of trained models, which are checkpoints, runs or published models, with clear errors."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch

from performer_string.models.files.paths import FILES, find_checkpoint, folder_hint, is_published, missing_hint
from performer_string.models.files.published import read_published
from performer_string.models.files.weights import PublishedError
from performer_string.utils.renames import rename_weights, unwrap_weights


class CheckpointError(ValueError):
    """A checkpoint that cannot be used."""


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the content of a checkpoint of `python -m train`, with weights under their current names.

    Only tensors and plain values are loaded (`weights_only=True`, or safetensors), so that a file cannot run code.

    Args:
        path: path of the file, as `runs/NAME/checkpoints/last.ckpt`, or `DIR/model.safetensors` of a published model.

    Raises:
        CheckpointError: a path without a file, or a file that is damaged or of another kind. A `state_dict` alone does
            not say which model it is of.
    """
    path = Path(path)
    if is_published(path):
        try:
            content = read_published(path)
        except PublishedError as error:
            raise CheckpointError(str(error)) from error
        rename_weights(content["state_dict"])
        return content
    if not path.is_file():
        found = find_checkpoint(path)
        kind = "published model" if is_published(found) else "run"
        hint = f" It is the folder of a {kind}: give {found}." if found != path else ""
        hint = hint or (folder_hint(path) if path.is_dir() else missing_hint(path))
        raise CheckpointError(f"there is no checkpoint {path}.{hint}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types here: pickle, zip, end of file, key
        last, best = (path.with_name(Path(name).name) for name in FILES)
        hint = f" {best} is there too: it is taken where {last.name} is moved away." * (path == last and best.is_file())
        raise CheckpointError(
            f"{path} is not a checkpoint that can be read: it is cut off, damaged, or another kind of file "
            f"({type(error).__name__}).{hint}"
        ) from error
    if not isinstance(content, dict) or not content.keys() >= {"hyper_parameters", "state_dict"}:
        raise CheckpointError(
            f"{path} is no checkpoint of `python -m train`: it lacks hyper_parameters or state_dict. Weights alone go "
            f"into a model of the same configuration: ViT(config).load_state_dict(torch.load(path))."
        )
    for weights in ("state_dict", "current_model_state"):  # the second where the first is an average of the weights
        if weights in content:
            rename_weights(content[weights])
            unwrap_weights(content[weights])
    return content
