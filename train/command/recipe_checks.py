"""Check the recipe of a training in this process: what `train fit` refuses before it reads an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import torch
from jsonargparse import Namespace

from performer_string.models.files.paths import find_checkpoint
from train.callbacks.checks import CheckData
from train.callbacks.early_stopping import check_monitors
from train.command.arguments import expand
from train.command.early_checks import recipe_hint
from train.command.lightning_cli import TrainingCLI
from train.command.parser import Parser
from train.data.module import ImageData
from train.loss import class_weights
from train.module import ImageClassifier
from train.targets import check_outputs
from train.utils.imports import naming_imports
from train.utils.output import silent


class RaisingParser(Parser):
    """The parser of `python -m train`, which raises its errors."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a ValueError with the message and the nearest name."""
        raise ValueError(self.explained(message))


def build_light(kind: type, *arguments: Any, **options: Any) -> Any:
    """Return a classifier whose weights take no memory; models that cannot be built so are built as they are."""
    try:
        with torch.device("meta"):
            return kind(*arguments, **options)
    except (NotImplementedError, RuntimeError):  # performer-pytorch computes with its weights
        return kind(*arguments, **options)


class RecipeChecks(TrainingCLI):
    """The command line `python -m train fit`, whose values are checked and not run."""

    def __init__(self) -> None:
        super().__init__(
            ImageClassifier,
            ImageData,
            typed="",
            args=["fit"],
            parser_class=RaisingParser,
            parser_kwargs={"prog": "python -m train"},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )
        self.parser.add_instantiator(build_light, ImageClassifier)

    # `check` does what Lightning would do at once, for one command after the other.

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse nothing yet."""
        self.config = Namespace(subcommand=None, seed_everything=False)

    def before_instantiate_classes(self) -> None:
        """Check nothing yet."""

    def instantiate_classes(self) -> None:
        """Build nothing yet."""

    def after_instantiate_classes(self) -> None:
        """Load no weights."""

    def check(self, arguments: Sequence[str], later: Path) -> None:
        """Check the arguments of `python -m train`, beginning with `fit`; no image is read, and nothing is written.

        Args:
            arguments: arguments of the command.
            later: folder whose checkpoints may not be there yet.

        Raises:
            FileNotFoundError, ValueError: what the command would raise.
        """
        arguments = expand(arguments)
        try:
            with naming_imports(), silent():  # the training itself shows warnings
                super().parse_arguments(self.parser, arguments)
                self.subcommand = "fit"
                config = self.config.fit
                config.dry_run, config.trainer.logger = True, False  # a logger may open a run on a server
                for name in (config.get("init_from"), config.model.distillation.teacher):
                    check_checkpoint(name, later)
                config.init_from = ""
                super().before_instantiate_classes()
                super().instantiate_classes()
                self.check_together()
        except ValueError as error:
            raise ValueError(f"{error}{recipe_hint(str(error), arguments)}") from error

    def check_together(self) -> None:
        """Raise a ValueError where the model, the data and the callbacks do not fit each other."""
        trainer: Any = self.trainer
        model, data = cast(ImageClassifier, self.model), cast(ImageData, self.datamodule)
        check_outputs(data.outputs, model.optim, model.distillation, model.loss_config)
        if not isinstance(model.loss_config.class_weights, str):  # those that are given, and not counted
            class_weights(model.loss_config, model.vit.config.num_classes, None)
        data.num_classes = data.num_classes or model.vit.config.num_classes  # of a folder, which is not opened here
        CheckData().check(data, model)
        values = {name: getattr(trainer, name) for name in ("callbacks", "limit_val_batches")}
        check_monitors(cast(Any, SimpleNamespace(**values, datamodule=data)), model)


def check_checkpoint(name: str, later: Path) -> None:
    """Raise a FileNotFoundError for a checkpoint that is missing, and not in the folder `later`."""
    path = find_checkpoint(name)
    if name and not path.exists() and not path.resolve().is_relative_to(later.resolve()):
        raise FileNotFoundError(f"there is no checkpoint {name}.")
