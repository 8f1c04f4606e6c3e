"""The configuration of a run as a file beside it, which is a recipe for others."""

from __future__ import annotations

from pathlib import Path

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from performer_string.utils.files import write_aside
from train.command.recipe import UNREADABLE, without_unreadable


class SaveRecipe(SaveConfigCallback):
    """Write the configuration beside a run once training has begun: a resume that is refused leaves the file as it is.

    The file is without the checkpoint that a run was resumed from, so that it stays a recipe for others.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pass

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            config = self.config.clone()
            config.ckpt_path, config.check_data = None, False
            with write_aside(Path(config.run_dir) / self.config_filename) as partial:
                text = self.parser.dump(config, skip_none=False)  # `save` would write it in the machine's own encoding
                if UNREADABLE in text:
                    text = yaml.safe_dump(without_unreadable(yaml.safe_load(text)), sort_keys=False)
                partial.write_text(text, encoding="utf-8")
