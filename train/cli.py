"""The command line of `python -m train`, and of scripts that train another class."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import register_type
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from performer_string.utils.registry import nearest
from train._compat import option_names, subcommands_of
from train.command_line import one_message, user_message
from train.config import options_of
from train.data.module import ImageData
from train.lightning_cli import SaveRecipe, TrainingCLI
from train.module import ImageClassifier, NonFiniteLossError
from train.run_folder import CHECKPOINTS, CONFIG, LAST, latest_checkpoint

LINKED = {"data.seed", "model.vit.seed"}  # which follow from another field


# So that config.yaml has the device of StochasticWeightAveraging as text that can be read again.
register_type(torch.device, deserializer_exceptions=(ValueError, TypeError, RuntimeError))


class Parser(LightningArgumentParser):
    """A parser whose errors name the nearest field, without a page of usage, and that takes no abbreviations."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Write the message with the nearest name to stderr and exit with status 2."""
        commands = subcommands_of(self)
        names = {*option_names(self)}.union(*(option_names(sub) for sub in commands.values())) - LINKED
        empty = re.search(r'Key "([\w.]+)" not found in namespace', message)
        command = re.search(r"argument subcommand: invalid choice: '(\w+)'", message)
        unknown = re.search(
            r"(?:[Kk]ey|[Gg]roup|[Oo]ption|arguments:|argument)\s+'?(?:--)?(?:fit\.)?([\w.]+)'?", message
        )
        hint = ""
        if empty:
            message = f"{empty[1]} is missing: what it belongs to is there, with nothing in it."
        elif command:
            message = re.sub(r"\(choose from (.*)\)", r"(choose from \1, resume)", message)
            hint = nearest(command[1], [*commands, "resume"])
        elif unknown:
            longer = sorted(name for name in names if name.startswith(f"{unknown[1]}_"))  # seed, of seed_everything
            hint = nearest(unknown[1], names) or (f" Did you mean {longer[0]!r}?" if longer else "")
        sys.stderr.write(f"error: {message.strip()}{hint}\n")
        raise SystemExit(2)


def files_first(arguments: Sequence[str]) -> list[str]:
    """Return a subcommand's arguments with configuration files before options.

    A file sets every field that it names, so that an option before it would be lost.
    """
    files: list[str] = []
    options: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if before in ("-c", "--config"):
            files.append(find_recipe(argument))
        elif argument.startswith("--config="):
            files.append(f"--config={find_recipe(argument.removeprefix('--config='))}")
        else:
            (files if argument in ("-c", "--config") else options).append(argument)
    return [*options[:1], *files, *options[1:]]


def find_recipe(path: str) -> str:
    """Return the path of a recipe: the file itself, or else the recipe of that name in `train/configs`.

    So `--config arrow` and `--config train/configs/arrow.yaml` work from any folder.
    """
    if not path or Path(path).expanduser().exists():
        return path
    packaged = Path(__file__).parent / "configs" / f"{Path(path).name.removesuffix('.yaml')}.yaml"
    by_name = Path(path).parent in (Path(), Path("train/configs"))
    return str(packaged) if by_name and packaged.is_file() else path


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `fit` that `resume RUN [options]` stands for.

    Args:
        arguments: what comes after `resume`.

    Raises:
        ValueError: no folder of a run comes first, or an option that does not go with it.
        FileNotFoundError: the run has no checkpoint.
    """
    if "init_from" in dict(options_of(arguments)):
        raise ValueError("--init_from starts a training and resume continues one: leave it out, or use fit.")
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(
            "resume takes the directory of a run, and then what fit takes: python -m train resume runs/NAME "
            "[--trainer.max_epochs 20]."
        )
    run = Path(arguments[0]).expanduser()
    run = run if run.name else run.resolve()  # "." would be another folder elsewhere
    if run.is_file() and run.parent.name == CHECKPOINTS:
        raise ValueError(f"resume takes the folder of a run: python -m train resume {run.parents[1]}.")
    latest = latest_checkpoint(run)
    if latest is None or not (run / CONFIG).is_file():
        missing = run / CONFIG if latest is not None else run / CHECKPOINTS / LAST
        raise FileNotFoundError(
            f"{run} is not a run that can be resumed: there is no {missing}. If it ended before its first checkpoint, "
            f"start it again with python -m train fit."
        )
    resumed = ["--config", str(run / CONFIG), "--ckpt_path", str(latest), "--run_dir", str(run)]
    return ["fit", *resumed, *arguments[1:]]


def expand(arguments: Sequence[str]) -> list[str]:
    """Return arguments as the parser takes them, with options after the files that they override.

    `resume` becomes `fit`. `test` and `validate` with the configuration of a run are of that run, wherever it lies now.
    """
    arguments = list(arguments)
    for name, value in options_of(arguments):
        if re.fullmatch(r"trainer\.limit_\w+_batches", name) and value == "1":
            raise ValueError(
                f"--{name} 1 would be read as 1.0, which is all batches: write 1.0 for that, or 2 and more. "
                f"One batch of each is --trainer.fast_dev_run true."
            )
    if arguments[:1] == ["resume"]:
        arguments = resume_arguments(arguments[1:])
    if arguments[:1] not in (["fit"], ["validate"], ["test"]):
        return arguments
    arguments = files_first(arguments)
    options = dict(options_of(["--config" if argument == "-c" else argument for argument in arguments]))
    run = Path(options.get("config", "")).expanduser().parent
    of_run = Path(options.get("config", "")).name == CONFIG and latest_checkpoint(run) is not None
    if arguments[0] != "fit" and of_run and not {"run_dir", "ckpt_path"} & options.keys():
        arguments += ["--run_dir", str(run)]
    return arguments


def run(
    arguments: Sequence[str] | None = None,
    model: type[ImageClassifier] = ImageClassifier,
    data: type[ImageData] = ImageData,
) -> TrainingCLI:
    """Run a command and raise what goes wrong.

    Args:
        arguments: of the command line; None for those of this process.
        model, data: classes in place of these.
    """
    for message in ("does not have many workers", "isinstance.treespec, LeafSpec", "args parameter is intended to run"):
        warnings.filterwarnings("ignore", message=f".*{message}.*")
    offers = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    offers.addFilter(lambda record: "seamless cloud" not in record.getMessage())
    is_script = (model, data) != (ImageClassifier, ImageData)
    program = f"python {shlex.quote(sys.argv[0])}" if is_script else "python -m train"
    return TrainingCLI(
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
    """Return what to say of an error that a user can fix, Lightning's included; None of any other."""
    message = str(error)
    if "No supported gpu backend" in message:
        return "a GPU was asked for (--trainer.accelerator), but torch sees none here. Use cpu, or auto."
    is_lightnings = isinstance(error, MisconfigurationException | NonFiniteLossError) or (
        (isinstance(error, RuntimeError) and message.startswith("Early stopping conditioned on metric"))
        or (isinstance(error, ModuleNotFoundError) and message.startswith("Requirement '"))  # of an accelerator
    )
    return user_message(error) or (message if is_lightnings else None)


def main(
    arguments: Sequence[str] | None = None,
    model: type[ImageClassifier] = ImageClassifier,
    data: type[ImageData] = ImageData,
) -> None:
    """Run a command; what a user can fix is one message and exit status 2. Arguments as of `run`."""
    with one_message(explain):
        run(arguments, model, data)
