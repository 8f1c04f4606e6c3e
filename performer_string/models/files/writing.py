"""The files of a model, written into a folder or uploaded: weights, configuration and card."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi, ModelCard

from performer_string.models.files.card import ModelDetails, card
from performer_string.models.files.paths import CARD, CONFIG, WEIGHTS
from performer_string.models.files.published import check_savable, write_config
from performer_string.models.files.weights import write_weights

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT


def write_files(model: ViT, details: ModelDetails, folder: Path) -> None:
    """Write the files of a model into an empty folder."""
    write_weights(model, folder)
    command, metrics = details.command or None, list(details.metrics)
    write_config(model, folder, metrics=metrics, command=command, training=details.training)
    ModelCard(card(model, details), ignore_metadata_errors=True).save(folder / CARD)


def write_folder(model: ViT, details: ModelDetails, folder: Path, replace_card: bool) -> None:
    """Write the files into a folder, each when all are finished. A card that is there stays unless it may be replaced.

    Raises:
        ValueError: a model that could not be loaded again.
    """
    check_savable(model)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as partial:
        write_files(model, details, Path(partial))
        for name in (WEIGHTS, CONFIG, CARD):
            if name != CARD or replace_card or not (folder / CARD).exists():
                os.replace(Path(partial, name), folder / name)


def upload(
    model: ViT,
    details: ModelDetails,
    name: str,
    commit_message: str,
    private: bool | None,
    token: str | None,
    branch: str | None,
    create_pr: bool | None,
) -> str:
    """Upload the files to a repository of the Hub, and return the address of the commit.

    For the arguments see `ViT.push_to_hub`.
    """
    api = HfApi(token=token)
    repository = api.create_repo(name, private=private, exist_ok=True).repo_id
    with tempfile.TemporaryDirectory() as folder:
        write_files(model, details, Path(folder))
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=commit_message, revision=branch, create_pr=create_pr
        )
    return str(commit)
