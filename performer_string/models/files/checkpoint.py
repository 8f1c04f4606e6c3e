"""The one reader of trained models, which are checkpoints, runs or published models, with clear errors."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch

from performer_string.models.files.published import CONFIG, read_published
from performer_string.models.files.weights import WEIGHTS, PublishedError
from performer_string.utils.files import nearest_path
from performer_string.utils.renames import rename_weights, unwrap_weights

FILES = ("checkpoints/last.ckpt", "checkpoints/best.ckpt")  # in the folder of a run, in order of preference


class CheckpointError(ValueError):
    """A checkpoint that cannot be used."""


def find_checkpoint(path: str | PathLike[str]) -> Path:
    """Return the path of a file of weights.

    Args:
        path: path of a checkpoint; of the folder of a run, for its last checkpoint; or of the folder of a published
            model, for its `model.safetensors`.
    """
    path = Path(path).expanduser()
    published = [WEIGHTS] if (path / CONFIG).is_file() or (path / WEIGHTS).is_file() else []
    return next((path / name for name in FILES if (path / name).is_file()), path.joinpath(*published))


def is_published(path: Path) -> bool:
    """Return whether a path that `find_checkpoint` returned is of a published model."""
    return path.suffix == Path(WEIGHTS).suffix


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
        raise CheckpointError(
            f"{path} is not a checkpoint that can be read: it is cut off, damaged, or another kind of file "
            f"({type(error).__name__})."
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


def missing_hint(path: Path) -> str:
    """Return a hint to the path to give in place of one that does not exist."""
    places = (Path(place) / path for place in ("runs", "models"))
    found = [place for place in places if not path.is_absolute() and find_checkpoint(place) != place]
    hint = f" Did you mean {found[0]}?" if found else nearest_path(path)
    return hint or " Give the folder of a run, a checkpoint, or the folder of a published model."


def folder_hint(path: Path) -> str:
    """Return a hint to the path to give in place of a folder that is neither a run nor a published model."""
    if (path / "config.yaml").is_file() or (path / "checkpoints").is_dir():
        return (
            " It is the folder of a run without a checkpoint: it was stopped before the first one, or has not come to "
            "it. Train it again, or wait."
        )
    within = [find_checkpoint(each) for each in path.iterdir() if each.is_dir() and find_checkpoint(each) != each]
    if any(map(is_published, within)):
        return f" It is a folder of published models: give {path}/NAME."
    if within:
        return f" It is a folder of runs: give {path}/*/{FILES[0]}."
    return f" It is no folder of a run, which has {' or '.join(FILES)}, and of no published model, which has {WEIGHTS}."
