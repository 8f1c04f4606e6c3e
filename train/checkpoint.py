"""Trained models back from their checkpoints, with errors that say what is wrong with a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from performer_string import ViTConfig
from train.data.module import ImageData
from train.files import latest_checkpoint
from train.module import ImageClassifier


class CheckpointError(ValueError):
    """A checkpoint that cannot be used."""


@dataclass
class Trained:
    """A checkpoint: the model, and what it was trained on."""

    path: Path
    classifier: ImageClassifier
    data: ImageData


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint file, loaded with `weights_only=True`."""
    path = Path(path)
    if not path.is_file():
        inside = latest_checkpoint(path)
        hint = "" if inside is None else f" It is the folder of a run: give {inside}."
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


def load_trained(path: str | Path, **overrides: Any) -> Trained:
    """The model of a checkpoint, in evaluation mode; `overrides` replace fields of its ViTConfig."""
    content = read_checkpoint(path)
    try:
        vit = ViTConfig(**{**content["hyper_parameters"]["vit"], **overrides})
        classifier = ImageClassifier(vit, resolutions=content["hyper_parameters"]["resolutions"])
        classifier.load_state_dict(content["state_dict"])
        data = ImageData.from_checkpoint(content["ImageData"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the weights in {path} do not match the configuration beside them: {error}") from error
    return Trained(Path(path), classifier.eval(), data)


def check_same_model(path: str | Path, wanted: dict[str, Any]) -> None:
    """An error that lists the differences, unless the checkpoint is of a model of this configuration."""
    saved = asdict(ViTConfig(**read_checkpoint(path)["hyper_parameters"]["vit"]))  # with what is newer at its default
    wrong = [
        f"{k}: {saved.get(k)!r} in the checkpoint, {v!r} asked for" for k, v in wanted.items() if saved.get(k) != v
    ]
    if wrong:
        raise CheckpointError(
            f"{path} is of another model:\n  " + "\n  ".join(wrong) + "\nResume with the configuration that the run "
            "was started with: it lies beside its checkpoints as config.yaml."
        )
