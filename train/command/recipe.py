"""The fields of a recipe: known and former names, and their values on a command line.

The library and the trainer are imported where they are used, since reading arguments needs neither.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from performer_string.utils.registry import nearest
from train.utils.yaml_file import read_value

SET_BY_SWEEP = {"seed_everything", "run_dir", "config", "ckpt_path"}  # options that a sweep sets for each run
BEFORE_TRAINING = {"dry_run", "find_lr"}  # options that end the command without a training
RENAMED_PARTS = ("model.vit.", "model.optim.")  # groups with renamed fields


@functools.cache
def recipe_fields() -> tuple[set[str], set[str]]:
    """Return the names of groups of fields, and of fields, of `python -m train fit`."""
    from lightning.pytorch import Trainer  # slow to import, and rarely needed by sweeps

    from performer_string import ViTConfig
    from train.command.options import FLAGS, OPTIONS
    from train.data.module import ImageData
    from train.data.tasks import TASKS
    from train.distill import DistillationConfig
    from train.loss import LossConfig
    from train.optim import OptimConfig

    kinds = {"model.vit": ViTConfig, "model.optim": OptimConfig, "model.distillation": DistillationConfig}
    kinds |= {"model.loss": LossConfig, "data": ImageData}
    kinds |= {f"data.{name}": task for name, task in TASKS.items()}
    groups = {*kinds, "model", "trainer"}
    names = {f"{group}.{field.name}" for group, kind in kinds.items() for field in fields(kind)}
    names |= {f"trainer.{name}" for name in inspect.signature(Trainer).parameters}
    return groups, (names | {*OPTIONS, *FLAGS}) - groups


def packaged_recipes() -> dict[str, Path]:
    """Return the paths of the recipes in `train/configs`, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))}


def missing_recipe(path: Path) -> FileNotFoundError:
    """Return the error for a missing recipe, with the nearest name."""
    known = list(packaged_recipes())
    return FileNotFoundError(f"there is no recipe {path}.{nearest(path.stem, known)} By name: {', '.join(known)}.")


def check_fields(names: Iterable[str]) -> None:
    """Check names of fields, or of entries in a field (`model.vit.feature_options.order`).

    Raises:
        ValueError: an unknown name (the message has the nearest one), or a field that a sweep sets itself.
    """
    from performer_string import ViTConfig

    vit = {f"model.vit.{field.name}" for field in fields(ViTConfig)}
    for name in names:
        parts = name.split(".")
        outer = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        if name in SET_BY_SWEEP:
            raise ValueError(f"{name} is what a sweep gives to each of its runs itself; take it out.")
        if name in BEFORE_TRAINING:
            raise ValueError(f"{name} ends before a training begins: give it to python -m train fit.")
        if outer & vit:
            continue
        groups, known = recipe_fields()
        if name not in groups and not outer & known:
            raise unknown_field(name, known)


def nearest_field(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'model.optim.lr'?"` for `lr`, from the fields with that last part, or the nearest one.

    For a field of the model it may be this project's name of the same thing.

    Args:
        name: full name, such as `model.vit.embed_dim`, or its last part.
        known: full names of all fields.
    """
    from performer_string.models.config.field_names import field_hint

    known, (part, _, last) = list(known), name.rpartition(".")
    if part == "model.vit":
        return field_hint(last, [each.removeprefix("model.vit.") for each in known], "model.vit.")
    alike = [each for each in known if each.rpartition(".")[2] == last]
    return f" Did you mean {alike[0]!r}?" if len(alike) == 1 else nearest(name, alike or known)


def unknown_field(name: str, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown field, with the hint of `nearest_field`."""
    return ValueError(f"unknown field {name!r}.{nearest_field(name, known)} All: python -m train fit --help.")


def options_of(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each option: of `--data.root x`, `--data.root=x`, `--trainer.callbacks+=x` and `-c x`."""
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = ("--config" if argument == "-c" else argument).partition("=")
        if name.startswith("--") and len(name) > 2:
            yield name[2:].rstrip("+"), value if equals else after


def flatten(name: str, value: Any) -> dict[str, Any]:
    """Return the nested fields in a value, by full name."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {full: leaf for key, part in value.items() for full, leaf in flatten(f"{name}.{key}", part).items()}


def find_conflict(overrides: Mapping[str, Any], arguments: Sequence[str]) -> str | None:
    """Return the first option that sets a field to another value than earlier overrides; None where none does.

    Args:
        overrides: values of fields, by full name.
        arguments: arguments of a command line.
    """
    before = {key: flatten(key, override) for key, override in overrides.items()}
    for name, text in options_of(arguments):
        new = flatten(name, read_value(text))
        for key, old in before.items():
            replaced = name == key and new.keys() != old.keys()
            if replaced or any(read_value(old[leaf]) != new[leaf] for leaf in new.keys() & old.keys()):
                return name
    return None


@functools.cache
def report_rename(former: str, current: str) -> None:
    """Report once, from the first process of a run, that a field was renamed."""
    if not int(os.environ.get("LOCAL_RANK", 0)):
        sys.stderr.write(f"note: {former} is called {current} now; the former name is still read.\n")


def current_option(name: str) -> str:
    """Return the current name of a field, or of an entry in a field, such as `model.vit.log_n_scaling`."""
    from performer_string.utils.renames import current_fields

    for part in RENAMED_PARTS:
        if name.startswith(part):
            former, dot, inside = name.removeprefix(part).partition(".")
            (current,) = current_fields({former: None})
            if current != former:
                report_rename(part + former, part + current)
            return part + current + dot + inside
    return name


def current_recipe(content: Any, prefix: str = "") -> Any:
    """Return the fields of a recipe, nested or with dots in their names, under their current names.

    Args:
        content: values by name, or a single value, which is returned unchanged.
        prefix: prefix of their full names.
    """
    from performer_string.utils.renames import current_name

    if not isinstance(content, Mapping):
        return current_name("feature map", content) if prefix == "model.vit.feature_map." else content
    fields_ = {name: current_option(f"{prefix}{name}") for name in content}
    return {
        name if full == f"{prefix}{name}" else full.removeprefix(prefix): current_recipe(content[name], f"{full}.")
        for name, full in fields_.items()
    }


def current_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments of `python -m train` under current names; configurations with former names become text."""
    current, option = [], ""  # the option whose value comes next
    for argument in arguments:
        if argument.startswith("--") and "=" in argument:
            option, _, value = argument[2:].partition("=")
            current.append(f"--{current_option(option)}={current_value(option, value)}")
            option = ""
        elif argument.startswith("--"):
            option = argument[2:]
            current.append(f"--{current_option(option)}")
        else:
            current.append(current_value(option, argument) if option else argument)
            option = "config" if argument == "-c" else ""
    return current


def current_value(name: str, text: str) -> str:
    """Return an option's value; a configuration (text or file) with former names becomes JSON with current ones."""
    from performer_string.utils.renames import current_name

    prefix = {"config": "", "model": "model.", "model.vit": "model.vit.", "model.optim": "model.optim."}.get(name)
    if name == "model.vit.feature_map":
        return current_name("feature map", text)
    if prefix is None:
        return text
    path = Path(text).expanduser()
    try:
        content = read_value(path.read_text(encoding="utf-8") if len(text) < 4096 and path.is_file() else text)
    except (OSError, ValueError):  # the parser reports it
        return text
    current = current_recipe(content, prefix)
    return text if current == content else json.dumps(current)
