"""The command line of `python -m train`, and of scripts with a class of one's own."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from train.arguments import Parser, expand
from train.commands import SaveRecipe, TrainCLI
from train.data.module import ImageData
from train.errors import mendable, one_message
from train.module import ImageClassifier, NonFiniteLossError


def run(
    arguments: Sequence[str] | None = None,
    model: type[ImageClassifier] = ImageClassifier,
    data: type[ImageData] = ImageData,
) -> TrainCLI:
    """Runs a command; raises what goes wrong.

    Args:
        arguments: of the command line; those of this process unless given.
        model, data: classes of one's own in place of these.
    """
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*args parameter is intended to run from within Python.*")
    offers = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    offers.addFilter(lambda record: "seamless cloud" not in record.getMessage())
    own = (model, data) != (ImageClassifier, ImageData)
    program = f"python {shlex.quote(sys.argv[0])}" if own else "python -m train"
    return TrainCLI(
        model,
        data,
        args=expand(sys.argv[1:] if arguments is None else arguments),
        save_config_callback=SaveRecipe,
        parser_class=Parser,
        parser_kwargs={"prog": program, "epilog": "resume RUN [options of fit]: continue a run"},
        seed_everything_default=0,
        auto_configure_optimizers=False,
        trainer_defaults={
            # One unless torchrun says more, or a recipe's batch size would be another one on each machine.
            "devices": int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", 1)),
            "use_distributed_sampler": False,
            "gradient_clip_val": 1.0,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 10,
        },
    )


def explain(error: Exception) -> str | None:
    """What to say of an error that a user can mend, in Lightning's command line or in ours; None of any other."""
    said = str(error)
    if "No supported gpu backend" in said:
        return "a GPU was asked for (--trainer.accelerator), but torch sees none here. Use cpu, or auto."
    if isinstance(error, RuntimeError) and said.startswith("Early stopping conditioned on metric"):
        return said
    if isinstance(error, ModuleNotFoundError) and said.startswith("Requirement '"):  # of an accelerator
        return said
    if mendable(error) is None and not isinstance(error, MisconfigurationException | NonFiniteLossError):
        return None
    return mendable(error) or said


def main(
    arguments: Sequence[str] | None = None,
    model: type[ImageClassifier] = ImageClassifier,
    data: type[ImageData] = ImageData,
) -> None:
    """`run`, where what a user can fix is one message and exit status 2."""
    with one_message(explain):
        run(arguments, model, data)
