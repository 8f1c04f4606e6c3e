"""The command line `python -m train`, also for scripts that train another class.

Files are checked before Lightning is imported, which takes several seconds.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from performer_string.utils.registry import nearest
from train.command.arguments import expand
from train.command.early_checks import check_files, import_for_help, recipe_hint
from train.command.explain import explain
from train.runs.slurm import requeued_before_training
from train.utils.errors import one_message
from train.utils.imports import naming_imports

if TYPE_CHECKING:
    from train.command.lightning_cli import TrainingCLI
    from train.data.module import ImageData
    from train.module import ImageClassifier


class Command(NamedTuple):
    """An entry in the list of commands.

    Attributes:
        help: help text.
        module: module whose `main` takes the arguments; empty for a command of Lightning's command line.
    """

    help: str
    module: str = ""


UNHELPFUL_WARNINGS = (  # regular expressions of Lightning's warnings
    "does not have many workers",
    "isinstance.treespec, LeafSpec",
    "args parameter is intended to run",
    "Set a lower value for log_every_n_steps",  # shown for epochs of few batches
    "Checkpoint directory .* exists and is not empty",  # shown for every resumed run
)
UNHELPFUL_LINES = re.compile(
    r"seamless cloud|GPU available: .* used: False|TPU available: False|Loading `train_dataloader` to estimate"
    r"|^Seed set to|^Restored all states|^`Trainer.fit` stopped: `max_\w+="  # recorded or printed elsewhere
)


COMMANDS = {
    "fit": Command("train a model by a recipe: fit --config arrow"),
    "resume": Command("continue a run: resume RUN [options of fit]"),
    "validate": Command("validate a run again: validate RUN"),
    "test": Command("test a run on its test images: test RUN"),
    "sweep": Command("train a recipe with every model and seed of a sweep file", "train.sweep"),
    "pretrained": Command("write a pretrained model of timm as a checkpoint", "train.pretrained"),
    "publish": Command("write a run as a folder that others can load", "train.publish"),
}


def is_helpful(record: logging.LogRecord) -> bool:
    """Return whether a line of Lightning's log is useful here."""
    return UNHELPFUL_LINES.search(record.getMessage()) is None


def program_name(is_script: bool) -> str:
    """Return how this process was called, for messages; `is_script` for the command line of a user's script."""
    if is_script:
        return f"python {shlex.quote(sys.argv[0])}"
    return "performer-string train" if Path(sys.argv[0]).stem == "performer-string" else "python -m train"


def usage(program: str) -> str:
    """Return the list of commands as text."""
    lines = (f"  {name:<11} {command.help}" for name, command in COMMANDS.items())
    more = f"{program} fit --help lists all fields, and the names and options of a model's parts."
    return f"usage: {program} COMMAND ...\n\n" + "\n".join(lines) + f"\n\n{more}"


def choose_command(arguments: Sequence[str], program: str) -> str:
    """Return the command at the start of the arguments; help and a misspelt command end the program."""
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print(usage(program))
        raise SystemExit(0)
    if name in COMMANDS:
        return name
    if not name or name.startswith("-"):
        sys.stderr.write(f"error: a command must come first.\n{usage(program)}\n")
    else:
        hint = nearest(name, COMMANDS)
        sys.stderr.write(f"error: unknown command {name!r}.{hint} Known: {', '.join(COMMANDS)}.\n")
    raise SystemExit(2)


def run(
    arguments: Sequence[str] | None = None,
    model: type[ImageClassifier] | None = None,
    data: type[ImageData] | None = None,
) -> TrainingCLI | None:
    """Run a command, without handling its errors.

    Args:
        arguments: arguments of the command line; None for those of this process.
        model, data: classes that replace `ImageClassifier` and `ImageData`.

    Returns:
        Lightning's command line, with the trainer and the model; None for other commands.
    """
    program = program_name(is_script=bool(model or data))
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    typed = f"{program} {shlex.join(arguments)}"
    command = COMMANDS[choose_command(arguments, program)]
    if command.module:
        importlib.import_module(command.module).main(arguments[1:])
        return None
    arguments = expand(arguments)
    if {"-h", "--help"} & {*arguments}:
        import_for_help(arguments)
    else:
        check_files(arguments)
    try:
        with naming_imports():
            return run_lightning(arguments, model, data, program, typed)
    except ValueError as error:
        if hint := recipe_hint(str(error), arguments):
            raise ValueError(f"{error}{hint}") from error
        raise


def run_lightning(
    arguments: Sequence[str],
    model: type[ImageClassifier] | None,
    data: type[ImageData] | None,
    program: str,
    typed: str,
) -> TrainingCLI:
    """Run a command of Lightning's command line; arguments are those of `run` and of `TrainingCLI`."""
    from train.command.lightning_cli import TrainingCLI
    from train.command.parser import Parser
    from train.data.module import ImageData
    from train.module import ImageClassifier
    from train.runs.save_recipe import SaveRecipe

    for message in UNHELPFUL_WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{message}.*")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(is_helpful)
    return TrainingCLI(
        model or ImageClassifier,
        data or ImageData,
        typed=typed,
        args=list(arguments),
        save_config_callback=SaveRecipe,
        parser_class=Parser,
        parser_kwargs={"prog": program},
        seed_everything_default=0,
        auto_configure_optimizers=False,
        trainer_defaults={
            # One device unless torchrun starts more: a recipe's batch size would otherwise depend on the machine.
            "devices": int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", 1)),
            "use_distributed_sampler": False,
            "gradient_clip_val": 1.0,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 10,
        },
    )


def main(
    arguments: Sequence[str] | None = None,
    model: type[ImageClassifier] | None = None,
    data: type[ImageData] | None = None,
) -> None:
    """Run a command; arguments are those of `run`.

    Errors that a user can fix end with one message and exit status 2. A training run that Ctrl-C stopped ends with
    130, and one that is out of time with 75.
    """
    try:
        trains = (sys.argv[1:] if arguments is None else list(arguments))[:1] in (["fit"], ["resume"])
        with requeued_before_training() if trains else nullcontext(), one_message(explain):
            run(arguments, model, data)
    except KeyboardInterrupt:  # before or after the training itself
        raise SystemExit(128 + signal.SIGINT) from None
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):  # after a second Ctrl-C Lightning exits with 1
            raise SystemExit(128 + signal.SIGINT) from None
        raise
