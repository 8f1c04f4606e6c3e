"""Expand the arguments of `python -m train`: recipes by name, files first, `resume` as `fit`.

Nothing here imports torch, so that a misspelt name or a missing file is reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from train.command.recipe import missing_recipe, options_of, packaged_recipes
from train.runs.folder import CHECKPOINTS, CONFIG, LAST, latest_checkpoint, run_of
from train.runs.history import read_history

START = "python -m train fit --config RECIPE"
RESUME_HELP = """usage: python -m train resume RUN [options of fit]

Continue the run in the folder RUN from its last checkpoint, as it would have gone on. Options change what the run has,
as --trainer.max_epochs 20 for a longer one; those of another training, as its learning rate, are refused.
python -m train fit --help lists them."""


def files_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a subcommand with configuration files before options.

    A file sets every field in it, so that it would override an option before it.
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
    """Return the path of a recipe file, or of the recipe with that name in `train/configs`.

    So `--config arrow` and `--config train/configs/arrow.yaml` work from any folder.
    """
    if not path or Path(path).expanduser().exists():
        return path
    by_name = Path(path).parent in (Path(), Path("train/configs"))
    return str(packaged_recipes().get(Path(path).name.removesuffix(".yaml"), path)) if by_name else path


def existing_recipe(text: str) -> Path:
    """Return the path of the recipe that the file of a sweep or a table names, as `find_recipe` does.

    Raises:
        FileNotFoundError: a missing recipe.
    """
    path = Path(find_recipe(text)).expanduser()
    if not path.is_file():
        raise missing_recipe(path)
    return path


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `fit` that are equivalent to `resume RUN [options]`.

    Args:
        arguments: arguments after `resume`.

    Raises:
        ValueError: a first argument that is no run's folder, or an option that `resume` does not take.
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
    run = run if run.name else run.resolve()  # "." would depend on the working directory
    if run.is_file() and (folder := run.parent if run.name == CONFIG else run_of(run)):
        raise ValueError(f"resume takes the folder of a run: python -m train resume {folder}.")
    latest = latest_checkpoint(run)
    if latest is None or not (run / CONFIG).is_file():
        missing = run / CONFIG if latest is not None else run / CHECKPOINTS / LAST
        raise FileNotFoundError(
            f"{run} is not a run that can be resumed: there is no {missing}. If it ended before its first checkpoint, "
            f"start it again: {first_command(run)}"
        )
    resumed = ["--config", str(run / CONFIG), "--ckpt_path", str(latest), "--run_dir", str(run)]
    return ["fit", *resumed, *arguments[1:]]


def first_command(run: Path) -> str:
    """Return the command that started a run; its beginning where it was not recorded."""
    history = read_history(run)
    return str(history[0].get("command") or START) if history else START


def expand(arguments: Sequence[str]) -> list[str]:
    """Return arguments in the form of the parser, with options after the files that they override.

    `resume` becomes `fit`. `test` and `validate` with the configuration of a run use the current folder of that run.
    """
    arguments = list(arguments)
    for name, value in options_of(arguments):
        if re.fullmatch(r"trainer\.limit_\w+_batches", name) and value == "1":
            raise ValueError(
                f"--{name} 1 would be read as 1.0, which is all batches: write 1.0 for that, or 2 and more. "
                f"One batch of each is --trainer.fast_dev_run true."
            )
    if arguments[:1] == ["resume"]:
        if {"-h", "--help"} & {*arguments}:
            print(RESUME_HELP)
            raise SystemExit(0)
        arguments = resume_arguments(arguments[1:])
    if arguments[:1] not in (["fit"], ["validate"], ["test"]):
        return arguments
    if arguments[0] != "fit" and arguments[1:] and not arguments[1].startswith("-"):
        arguments[1:2] = ["--config", str(Path(arguments[1]).expanduser() / CONFIG)]  # the folder of a run
    arguments = files_first(arguments)
    options = dict(options_of(["--config" if argument == "-c" else argument for argument in arguments]))
    run = Path(options.get("config", "")).expanduser().parent
    of_run = Path(options.get("config", "")).name == CONFIG and latest_checkpoint(run) is not None
    if arguments[0] != "fit" and of_run and not {"run_dir", "ckpt_path"} & options.keys():
        arguments += ["--run_dir", str(run)]
    return arguments
