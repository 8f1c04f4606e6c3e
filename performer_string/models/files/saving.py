"""Loading, saving and publishing of models: checkpoints, folders, and the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from performer_string.images.preprocessing import Preprocessing
from performer_string.models.config import ViTConfig
from performer_string.models.files.card import ModelDetails
from performer_string.models.files.checkpoint import CheckpointError, read_checkpoint
from performer_string.models.files.hub import (
    REPOSITORY_NAME,
    check_download_options,
    download,
    explain_download,
    explain_upload,
    hub,
)
from performer_string.models.files.paths import find_checkpoint
from performer_string.models.files.published import check_savable
from performer_string.models.files.weights import safetensors, share, take_types
from performer_string.position import SeparableEncoding

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT

Model = TypeVar("Model", bound="Saved")


def form_as(model: ViT, weights: Mapping[str, Any]) -> None:
    """Fold a new model where the weights to load are those of a folded model."""
    if "encoding.folded" in weights and isinstance(model.encoding, SeparableEncoding):
        model.encoding.mark_folded(model.norm.weight)


def vit_weights(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of the model in a checkpoint, by its own names."""
    weights = content["state_dict"].items()
    return {name.removeprefix("vit."): value for name, value in weights if name.startswith("vit.")}


class Saved:
    """Mixin of a ViT: loading, saving and publishing."""

    def rebuilt(self, config: ViTConfig) -> ViT:
        """Return a new model of this kind, with another configuration."""
        return cast("ViT", type(self)(config))  # type: ignore[call-arg]

    @classmethod
    def from_checkpoint(cls: type[Model], path: str | PathLike[str]) -> Model:
        """Load a trained model, on the CPU and in evaluation mode.

        Args:
            path: path of the folder of a run, for its last checkpoint; of a file, as `runs/NAME/checkpoints/best.ckpt`;
                or of the folder of a published model.

        Raises:
            ValueError: no such file, or one of another kind; a field that this version does not have.
        """
        path = find_checkpoint(path)
        content = read_checkpoint(path)
        config = ViTConfig.of_checkpoint(content["hyper_parameters"]["vit"])
        with torch.random.fork_rng(devices=[]):  # loading a teacher changes no later draw
            model = cast("ViT", cls(config))  # type: ignore[call-arg]
        weights = vit_weights(content)
        form_as(model, weights)
        try:
            if "published" in content:
                take_types(model, weights)
                share(model, content["published"]["shared"])
            model.load_state_dict(weights)
        except (RuntimeError, AttributeError) as error:
            raise CheckpointError(f"the weights in {path} do not fit the configuration beside them: {error}") from error
        model.preprocessing = Preprocessing.of_checkpoint(content)
        return cast(Model, model.eval())

    @classmethod
    def from_pretrained(cls: type[Model], name: str | PathLike[str], **options: Any) -> Model:
        """Load a model that `save_pretrained`, `push_to_hub` or `python -m train.publish` has published.

        It is in evaluation mode on the CPU, with weights and buffers bit for bit, in the types they were saved in.

        Args:
            name: path of a folder, or `owner/name` of a model on the Hub. A folder of that name comes first.
            options: options of `huggingface_hub.hf_hub_download`: `revision`, `token`,
                `local_files_only`, `cache_dir` and `force_download`.

        Raises:
            TypeError: another option, even for a folder. Sizes and parts are those of the saved model.
            ValueError: no such model, no network, a damaged model, or one that this version cannot read.
            ImportError: safetensors or huggingface_hub is missing.
        """
        check_download_options(options)
        folder = Path(name).expanduser()
        if not folder.exists() and REPOSITORY_NAME.fullmatch(str(name)):
            hub()
            with explain_download(str(name), options):
                return cls.from_checkpoint(download(str(name), **options))
        return cls.from_checkpoint(folder)

    def save_pretrained(
        self, folder: str | PathLike[str], details: ModelDetails | None = None, *, replace_card: bool = False
    ) -> Path:
        """Write `model.safetensors`, `config.json` and a model card into a folder.

        A card that is there already is kept unless asked otherwise, since somebody may have written it.

        Args:
            folder: folder to write into; made where it is missing.
            details: name, data, command, accuracies and licence, for the card.
            replace_card: whether to write the card anew where there is one.

        Returns:
            The folder.

        Raises:
            ValueError: a file in place of the folder, or a model that could not be loaded again, as one with adapters.
            ImportError: safetensors or huggingface_hub is missing.
        """
        model, folder = cast("ViT", self), Path(folder).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"save_pretrained writes a folder, and {folder} is a file: give another name.")
        safetensors(), hub()  # before anything is written
        name = re.sub(r"[^\w.-]", "-", folder.resolve().name).lstrip(".-") or "model"
        from performer_string.models.files.writing import write_folder

        write_folder(model, details or ModelDetails(name=name), folder, replace_card)
        return folder

    def push_to_hub(
        self,
        name: str,
        details: ModelDetails | None = None,
        *,
        commit_message: str = "Upload model",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Upload the model, its configuration and its card to the Hugging Face Hub.

        Args:
            name: name of the repository, `owner/name`; it is made where it is missing.
            details: details for the card, see `save_pretrained`.
            commit_message: first line of the commit.
            private: whether a new repository is private; the owner's setting by default.
            token: access token of the Hub; that of `hf auth login` by default.
            branch: branch of the repository, `main` by default.
            create_pr: whether to open a pull request with the commit.

        Returns:
            The address of the commit.

        Raises:
            ValueError: a name that is not `owner/name`, no network, no right to write there, or a model that could not
                be loaded again.
            ImportError: safetensors or huggingface_hub is missing.
        """
        safetensors(), hub()
        from performer_string.models.files.writing import upload

        model = cast("ViT", self)
        check_savable(model)
        details = details or ModelDetails(name=name.rpartition("/")[2])
        with explain_upload(name):
            return upload(model, details, name, commit_message, private, token, branch, create_pr)
