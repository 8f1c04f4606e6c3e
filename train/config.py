"""The fields of a recipe: which there are, what they were called before, and how a command line sets them.

The library and the trainer are imported where they are used: reading arguments alone needs neither.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from performer_string.utils.files import read_text
from performer_string.utils.registry import nearest

SET_BY_SWEEP = {"seed_everything", "run_dir", "config", "ckpt_path"}  # for each of its runs
UNREADABLE = "Unable to serialize instance"  # how jsonargparse's text for such values begins
RENAMED_PARTS = ("model.vit.", "model.optim.")  # whose fields have had other names


@functools.cache
def recipe_fields() -> tuple[set[str], set[str]]:
    """Return the names of groups of fields and of fields of `python -m train fit`."""
    from lightning.pytorch import Trainer  # slow to import, and needed by sweeps that have such fields only

    from performer_string import ViTConfig
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
    plain = {"ema", "init_from", "checkpoint_every", "figures_every", "imports", "compile", "matmul_precision"}
    return groups, (names | plain) - groups


def packaged_recipes() -> dict[str, Path]:
    """Return the recipes of `train/configs` by their names."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "configs").glob("*.yaml"))}


def check_fields(names: Iterable[str]) -> None:
    """Check names of fields, or of what is inside of one (`model.vit.feature_options.order`).

    Raises:
        ValueError: an unknown name, with the nearest one, or a field that sweeps set themselves.
    """
    from performer_string import ViTConfig

    vit = {f"model.vit.{field.name}" for field in fields(ViTConfig)}
    for name in names:
        parts = name.split(".")
        outer = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        if name in SET_BY_SWEEP:
            raise ValueError(f"{name} is what a sweep gives to each of its runs itself; take it out.")
        if outer & vit:
            continue
        groups, known = recipe_fields()
        if name not in groups and not outer & known:
            raise ValueError(f"unknown field {name!r}.{nearest(name, known)} All: python -m train fit --help.")


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the fields in a YAML file.

    Raises:
        FileNotFoundError, ValueError: there is no such file, it holds something else, or a key twice.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    text = read_text(path)
    try:
        content, repeated = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if repeated is not None:
        raise ValueError(
            f"{path}, line {repeated.start_mark.line + 1}: {repeated.value} stands twice in one group, and only the "
            f"second one would count. Remove one of them."
        )
    if not isinstance(content, dict):
        raise ValueError(f"{path} has to hold fields with their values, not {type(content).__name__}.")
    return copy.deepcopy(content)  # the caller may change it


@functools.lru_cache(maxsize=64)  # tables of papers read a recipe for each of their rows
def parse_yaml(text: str) -> tuple[Any, yaml.ScalarNode | None]:
    """Return the content of a YAML document, and a key that stands in it twice, if any."""
    return yaml.safe_load(text), find_repeated(yaml.compose(text, Loader=yaml.SafeLoader))


def find_repeated(document: yaml.Node | None) -> yaml.ScalarNode | None:
    """Return a key that a mapping of a YAML document has a second time, which YAML's readers take silently, or None."""
    waiting, seen = [document], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue  # aliases lead to a node again, and may lead in a circle
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
            known = set[str]()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in known:
                    return key
                known.add(key.value)
    return None


def options_of(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each option: of `--data.root x`, `--data.root=x`, `--trainer.callbacks+=x`."""
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.partition("=")
        if name.startswith("--") and len(name) > 2:
            yield name[2:].rstrip("+"), value if equals else after


def parse_value(text: str) -> Any:
    """Return a value as YAML reads it; text that is no YAML is text."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def flatten(name: str, value: Any) -> dict[str, Any]:
    """Return the fields inside of a value, by their full names."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {full: leaf for key, part in value.items() for full, leaf in flatten(f"{name}.{key}", part).items()}


def find_conflict(overrides: Mapping[str, Any], arguments: Sequence[str]) -> str | None:
    """Return the first option that sets a field to another value than overrides that stand before it, or None.

    Args:
        overrides: values by the full names of fields.
        arguments: of a command line.
    """
    for name, text in options_of(arguments):
        value = parse_value(text)
        for key, override in overrides.items():
            new, old = flatten(name, value), flatten(key, override)
            if (name == key and value != override) or any(old[leaf] != new[leaf] for leaf in new.keys() & old.keys()):
                return name
    return None


def without_unreadable(content: Any) -> Any:
    """Return a configuration without values that are no text, such as a function that is a default of a callback.

    The parser writes an apology in their place. They are defaults, since whatever a user gives is text.
    """
    if isinstance(content, Mapping):
        kept = {name: value for name, value in content.items() if not str(value).startswith(UNREADABLE)}
        return {name: without_unreadable(value) for name, value in kept.items()}
    return [without_unreadable(value) for value in content] if isinstance(content, list) else content


@functools.cache
def report_rename(former: str, current: str) -> None:
    """Write once, from the first process of a run, that a field has another name now."""
    if not int(os.environ.get("LOCAL_RANK", 0)):
        sys.stderr.write(f"note: {former} is called {current} now; the former name is still read.\n")


def current_option(name: str) -> str:
    """Return the name of a field, or of what is inside of one, of today: `model.vit.log_n_scaling`."""
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
    """Return fields of a recipe, nested or with dots in their names, under the names of today.

    Args:
        content: values by name, or a single value, which is returned as it is.
        prefix: what comes before their names.
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
    """Return arguments of `python -m train` under the names of today; configurations with others become text."""
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
    """Return the value of an option: a configuration (text or a file) with names of before as JSON with today's."""
    from performer_string.utils.renames import current_name

    prefix = {"config": "", "model": "model.", "model.vit": "model.vit.", "model.optim": "model.optim."}.get(name)
    if name == "model.vit.feature_map":
        return current_name("feature map", text)
    if prefix is None:
        return text
    from jsonargparse import get_loader  # reads 1e-3 as a number, as the parser does

    path = Path(text).expanduser()
    try:
        content = get_loader("yaml")(path.read_text(encoding="utf-8") if len(text) < 4096 and path.is_file() else text)
    except (OSError, ValueError, yaml.YAMLError):  # the parser has words for it
        return text
    current = current_recipe(content, prefix)
    return text if current == content else json.dumps(current)
