"""What a file of `python -m train`, or of `save_pretrained`, says of a model of timm's registry that starts from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from performer_string.images.preprocessing import Preprocessing
from performer_string.models.config import ViTConfig
from performer_string.models.files.checkpoint import CheckpointError, read_checkpoint
from performer_string.models.files.paths import find_checkpoint
from performer_string.timm.model import TimmViT

log = logging.getLogger(__name__)

# Fields that change no shape of a weight, but for the head's.
SHAPELESS = {"variant", "num_classes", "seed", "drop_path", "dropout"}
# Fields that may differ from the file's: they change no output, or are checked by the shapes of weights.
FREE = SHAPELESS | {"patch_size", "image_size", "position_grid"}


def read_file(overlay: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return timm's `pretrained_cfg_overlay` with what its file says, and the content of the file.

    Args:
        overlay: overlay with the entry `file`: a checkpoint, the folder of a run, or a published model. Its other
            entries take precedence over the file.

    Returns:
        The overlay with the number of classes, mean and standard deviation of the file, and the content. A file of
        another kind, as timm's own `CheckpointSaver` writes it, has no content.

    Raises:
        CheckpointError: there is no such file.
    """
    path = find_checkpoint(overlay["file"])
    try:
        content = read_checkpoint(path)
    except CheckpointError:
        if not Path(path).is_file():
            raise
        return dict(overlay), {}
    known: dict[str, Any] = {}
    if saved := content["hyper_parameters"].get("vit"):
        known["num_classes"] = ViTConfig.of_checkpoint(saved).num_classes
    if preprocessing := Preprocessing.of_checkpoint(content):
        known |= {"mean": preprocessing.mean, "std": preprocessing.std}
    return {**known, **overlay, "file": str(path)}, content


def describe(model: TimmViT, content: Mapping[str, Any], overlay: Mapping[str, Any]) -> None:
    """Give a model the preprocessing of the file that it started from, and warn of fields that differ.

    Args:
        model: model with the weights of the file.
        content: of the file.
        overlay: overlay of the user, whose mean and standard deviation take precedence.
    """
    saved = content["hyper_parameters"].get("vit")
    before = None if saved is None else ViTConfig.of_checkpoint(saved)
    preprocessing = Preprocessing.of_checkpoint(content)
    if preprocessing is not None:
        given = {name: overlay[name] for name in ("mean", "std") if name in overlay}
        if before is None or before.num_classes != model.num_classes:
            given["classes"] = ()  # the head is new
        model.preprocessing = replace(preprocessing, **given)
    if wrong := other_fields(model.config, content, FREE):
        log.warning(
            "the model has other fields than that of %s: %s. Give timm.create_model the fields of the file, or "
            "train on.",
            overlay["file"],
            wrong,
        )


def other_fields(config: ViTConfig, content: Mapping[str, Any], free: set[str]) -> str:
    """Return the fields in which a model differs from that of a file, but for `free` ones, each with both values."""
    saved = content.get("hyper_parameters", {}).get("vit")
    if saved is None:
        return ""
    own, other = asdict(config), asdict(ViTConfig.of_checkpoint(saved))
    wrong = (name for name in own if name not in free and own[name] != other[name])
    return "; ".join(f"{name}={own[name]!r} and not {other[name]!r}" for name in wrong)
