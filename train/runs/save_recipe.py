"""Save the configuration of a run as a file that is also a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from performer_string.utils.files import write_aside

UNREADABLE = "Unable to serialize instance"  # prefix of jsonargparse's text for such values


def without_unreadable(content: Any) -> Any:
    """Return a configuration without values that cannot be serialised, such as functions in defaults of callbacks.

    The parser writes a message in their place. They are always defaults, since values from a user are text.
    """
    if isinstance(content, Mapping):
        kept = {name: value for name, value in content.items() if not str(value).startswith(UNREADABLE)}
        return {name: without_unreadable(value) for name, value in kept.items()}
    return [without_unreadable(value) for value in content] if isinstance(content, list) else content


class SaveRecipe(SaveConfigCallback):
    """Write the configuration of a run when training begins, so that a rejected resume does not change the file.

    The file does not contain the checkpoint that a run was resumed from, so that it remains a recipe.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pass

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            config = self.config.clone()
            config.ckpt_path, config.check_data, config.if_run_exists = None, False, "refuse"
            with write_aside(Path(config.run_dir) / self.config_filename) as partial:
                text = self.parser.dump(config, skip_none=False)  # `save` would use the machine's own encoding
                if UNREADABLE in text:
                    text = yaml.safe_dump(without_unreadable(yaml.safe_load(text)), sort_keys=False)
                partial.write_text(text, encoding="utf-8")
