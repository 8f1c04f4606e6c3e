"""What the command line takes: errors that name the nearest field, and commands that stand for longer ones."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from performer_string.utils.registry import nearest
from train.files import CHECKPOINTS, CONFIG, LAST, latest_checkpoint


class Parser(LightningArgumentParser):
    """Errors that name the nearest field, and no page of usage before them; no abbreviations."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str, ex: Exception | None = None) -> Any:
        fields = [action.dest for action in self._actions]
        fields += [f"{name}.{action.dest}" for name, sub in self._subcommands().items() for action in sub._actions]
        unknown = re.search(r"(?:[Kk]ey|[Gg]roup|[Oo]ption|arguments:|argument)\s+'?(?:--)?([\w.]+)'?", message)
        names = {field.removeprefix("fit.") for field in fields} - {"data.seed", "model.vit.seed"}  # linked to another
        empty = re.search(r'Key "([\w.]+)" not found in namespace', message)
        if empty:
            message = f"{empty[1]} is missing: what it belongs to is there, with nothing in it."
        choice = re.search(r"argument subcommand: invalid choice: '(\w+)'", message)
        if choice:
            message = re.sub(r"\(choose from (.*)\)", r"(choose from \1, resume)", message)
            hint = nearest(choice[1], [*self._subcommands(), "resume"])
        else:
            word = unknown[1].removeprefix("fit.") if unknown else ""
            longer = sorted(name for name in names if name.startswith(f"{word}_"))  # seed, of seed_everything
            hint = nearest(word, names) or (f" Did you mean {longer[0]!r}?" if word and longer else "")
        sys.stderr.write(f"error: {message.strip()}{hint}\n")
        raise SystemExit(2)

    def _subcommands(self) -> dict[str, Any]:
        for action in self._actions:
            if isinstance(action.choices, dict):
                return action.choices
        return {}


def files_first(arguments: Sequence[str]) -> list[str]:
    """The subcommand, its configuration files in their order, and what overrides them: a file sets every field that it
    names, so that an option before it would be lost."""
    files: list[str] = []
    options: list[str] = []
    rest = iter(arguments[1:])
    for argument in rest:
        if argument in ("-c", "--config"):
            files += [argument, *itertools.islice(rest, 1)]
        else:
            (files if argument.startswith("--config=") else options).append(argument)
    return [*arguments[:1], *files, *options]


def expand(arguments: Sequence[str]) -> list[str]:
    """Arguments as the parser takes them, options after the files that they override.

    `resume RUN_DIR ...` stands for `fit` with the run's own configuration and its last checkpoint; `test` and
    `validate` with the configuration of a run are of that run, which may have been moved since.
    """
    if arguments and arguments[0] in ("fit", "validate", "test"):
        arguments = files_first(arguments)
    given = {option.partition("=")[0] for option in arguments}
    for option, value in [*pairwise(arguments), *(x.split("=", 1) for x in arguments if "=" in x)]:
        if re.fullmatch(r"--trainer\.limit_\w+_batches", option) and value == "1":
            raise ValueError(
                f"{option} 1 would be read as 1.0, which is all batches: write 1.0 for that, or 2 and more. "
                f"One batch of each is --trainer.fast_dev_run true."
            )
    if arguments and arguments[0] in ("test", "validate") and not {"--run_dir", "--ckpt_path"} & given:
        configs = [Path(value).expanduser() for option, value in pairwise(arguments) if option in ("-c", "--config")]
        configs += [Path(x.partition("=")[2]).expanduser() for x in arguments if x.startswith("--config=")]
        if configs and configs[-1].name == CONFIG and latest_checkpoint(configs[-1].parent) is not None:
            return [*arguments, "--run_dir", str(configs[-1].parent)]
    if not arguments or arguments[0] != "resume":
        return list(arguments)
    if "--init_from" in given:
        raise ValueError("--init_from starts a training and resume continues one: leave it out, or use fit.")
    if len(arguments) < 2 or arguments[1].startswith("-"):
        raise ValueError(
            "resume takes the directory of a run, and then what fit takes: python -m train resume runs/NAME "
            "[--trainer.max_epochs 20]."
        )
    run = Path(arguments[1]).expanduser()
    run = run if run.name else run.resolve()  # "." would be another folder elsewhere
    if run.is_file() and run.parent.name == CHECKPOINTS:
        raise ValueError(f"resume takes the folder of a run: python -m train resume {run.parents[1]}.")
    config, latest = run / CONFIG, latest_checkpoint(run)
    if latest is None or not config.is_file():
        missing = config if latest is not None else run / CHECKPOINTS / LAST
        raise FileNotFoundError(
            f"{run} is not a run that can be resumed: there is no {missing}. If it ended before its first checkpoint, "
            f"start it again with python -m train fit."
        )
    resumed = ["--config", str(config), "--ckpt_path", str(latest), "--run_dir", str(run)]
    return files_first(["fit", *resumed, *arguments[2:]])
