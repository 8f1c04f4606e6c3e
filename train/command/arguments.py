"""Expand the arguments of `python -m train`: recipes by name, files first, `resume` as `fit`.

Nothing here imports torch, so that a misspelt name or a missing file is reported at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from performer_string.models.files.paths import missing_hint
from train.command.recipe import missing_recipe, options_of, packaged_recipes
from train.runs.folder import CHECKPOINTS, CONFIG, LAST, latest_checkpoint
from train.runs.history import read_history

START = "python -m train fit --config RECIPE"
HELP = {
    "resume": """usage: python -m train resume RUN [options of fit]

Continue the run in the folder RUN from its last checkpoint, as it would have gone on. Options change what the run has,
as --trainer.max_epochs 20 for a longer one; those of another training, as its learning rate, are refused.
python -m train fit --help lists them.""",
    **{
        command: f"""usage: python -m train {command} RUN [options of fit]

Print the metrics of the run in the folder RUN on its {images} images, by its last checkpoint or that of --ckpt_path
FILE. --data.root DIR is where the images are now. python -m train fit --help lists the options.
python -m eval resolution RUN has accuracies at any size, with intervals, and writes them to a file."""
        for command, images in (("test", "test"), ("validate", "validation"))
    },
}


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
        FileNotFoundError: the run is missing, or has no checkpoint.
    """
    if "init_from" in dict(options_of(arguments)):
        raise ValueError("--init_from starts a training and resume continues one: leave it out, or use fit.")
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(
            "resume takes the folder of a run, and then what fit takes: python -m train resume runs/NAME "
            "[--trainer.max_epochs 20]."
        )
    run = find_run("resume", arguments[0])
    latest = latest_checkpoint(run)
    return ["fit", "--config", str(run / CONFIG), "--ckpt_path", str(latest), "--run_dir", str(run), *arguments[1:]]


def is_run(path: Path) -> bool:
    """Return whether a folder has the recipe and a checkpoint of a run."""
    return (path / CONFIG).is_file() and latest_checkpoint(path) is not None


def find_run(command: str, text: str) -> Path:
    """Return the folder of a run that a command goes on with, which has a recipe and a checkpoint.

    Raises:
        ValueError, FileNotFoundError: another path, with what to give in its place.
    """
    run = Path(text).expanduser()
    run = run if run.name else run.resolve()  # "." would depend on the working directory
    if is_run(run):
        return run
    if not run.exists():
        raise FileNotFoundError(f"there is no run {run}.{missing_hint(run)}")
    usage = f"{command} takes the folder of a run: python -m train {command} "
    if outer := next(filter(is_run, run.parents[:2]), run.parent if run.name == CONFIG else None):
        this = f" --ckpt_path {shlex.quote(text)}" if run.suffix == ".ckpt" and command != "resume" else ""
        raise ValueError(f"{usage}{shlex.quote(str(outer))}{this}.")
    if runs := sorted(filter(is_run, run.glob("*"))):
        raise ValueError(f"{run} is a folder of runs: {usage}{shlex.quote(str(runs[0]))}.")
    if (run / CONFIG).is_file():
        raise FileNotFoundError(
            f"{run} has no checkpoint, {run / CHECKPOINTS / LAST}: it ended before its first one, or has not come to "
            f"it. Start it again: {first_command(run)}"
        )
    why = f"it has no recipe, {run / CONFIG}" if latest_checkpoint(run) else "it has no recipe and no checkpoint"
    raise FileNotFoundError(
        f"{run} is not a run: {'it is a file' if run.is_file() else why}. A checkpoint or a published model alone is "
        f"tested by python -m eval resolution, and a training starts from its weights by fit and --init_from."
    )


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
    if {"-h", "--help"} & {*arguments} and arguments[0] in HELP:
        print(HELP[arguments[0]])
        raise SystemExit(0)
    if arguments[:1] == ["resume"]:
        arguments = resume_arguments(arguments[1:])
    if arguments[:1] not in (["fit"], ["validate"], ["test"]):
        return arguments
    if arguments[0] != "fit" and arguments[1:] and not arguments[1].startswith("-"):
        arguments[1:2] = ["--config", str(find_run(arguments[0], arguments[1]) / CONFIG)]
    arguments = files_first(arguments)
    options = dict(options_of(arguments))
    run = Path(options.get("config", "")).expanduser().parent
    of_run = Path(options.get("config", "")).name == CONFIG and latest_checkpoint(run) is not None
    if arguments[0] != "fit" and of_run and not {"run_dir", "ckpt_path"} & options.keys():
        arguments += ["--run_dir", str(run)]
    return arguments
