"""A model as `huggingface_hub.ModelHubMixin` saves, uploads and downloads it.

The mixin needs a package that the library does without. So a `ViT` is handed to this class when it is saved or loaded,
and is no subclass of the mixin itself.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard, ModelHubMixin

from performer_string.models.files.card import ModelDetails, card
from performer_string.models.files.hub import download
from performer_string.models.files.published import CARD, CONFIG, check_savable, write_config
from performer_string.models.files.weights import WEIGHTS, write_weights

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT

FILES = (WEIGHTS, CONFIG, CARD)


class HubModel(ModelHubMixin):
    """A ViT with the details for its card.

    Args:
        model: model to save or upload.
        details: details for the card and `config.json`.
    """

    def __init__(self, model: ViT, details: ModelDetails | None = None):
        self.model, self.details = model, details or ModelDetails()

    def write(self, folder: Path, replace_card: bool = False) -> None:
        """Write the files into a folder, where a card stays unless it may be replaced.

        The mixin begins with the removal of an old `config.json`. So it writes into a temporary folder, and finished
        files are moved.
        """
        check_savable(self.model)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as partial:
            self.save_pretrained(partial)
            for name in FILES:
                if name != CARD or replace_card or not (folder / CARD).exists():
                    os.replace(Path(partial, name), folder / name)

    def _save_pretrained(self, save_directory: Path) -> None:
        write_weights(self.model, save_directory)
        details = self.details
        write_config(
            self.model,
            save_directory,
            metrics=list(details.metrics),
            command=details.command or None,
            training=details.training,
        )

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the card of the model."""
        return ModelCard(card(self.model, self.details), ignore_metadata_errors=True)

    @classmethod
    def _from_pretrained(  # type: ignore[override]  # the mixin's own options are those of a download
        cls, *, model_id: str, model_class: type[ViT], **options: Any
    ) -> HubModel:
        return cls(model_class.from_checkpoint(download(model_id, **options)))
