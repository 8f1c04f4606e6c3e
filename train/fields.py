"""What the fields of a recipe are called, so that a sweep with a typo in it is refused before its first run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import yaml

from performer_string import ViTConfig
from performer_string.utils.registry import nearest

OF_A_RUN = {"seed_everything", "run_dir", "config", "ckpt_path"}  # what the sweep itself gives to each


@functools.cache
def recipe_fields() -> tuple[set[str], set[str]]:
    """Groups of fields and fields of `python -m train fit`, by their full names."""
    from lightning.pytorch import Trainer  # slow to import, and needed by sweeps that have such fields only

    from train.data.arrow import ArrowTask
    from train.data.module import ImageData
    from train.distillation import DistillationConfig
    from train.optim import OptimConfig

    kinds = {"model.vit": ViTConfig, "model.optim": OptimConfig, "model.distillation": DistillationConfig}
    kinds |= {"data": ImageData, "data.arrow": ArrowTask}
    groups = {*kinds, "model", "trainer"}
    names = {f"{group}.{field.name}" for group, kind in kinds.items() for field in fields(kind)}
    names |= {f"trainer.{name}" for name in inspect.signature(Trainer).parameters}
    return groups, (names | {"ema", "init_from", "checkpoint_every", "imports", "compile"}) - groups


def check_fields(names: Iterable[str]) -> None:
    """An error for a name that is no field, nor within one (`model.vit.feature_options.order`)."""
    for name in names:
        if name in OF_A_RUN:
            raise ValueError(f"{name} is what a sweep gives to each of its runs itself; take it out.")
        groups, known = recipe_fields()
        parts = name.split(".")
        within = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
        if name not in groups and not any(outer in known for outer in within):
            raise ValueError(f"unknown field {name!r}.{nearest(name, known)} All: python -m train fit --help.")


def named(arguments: Iterable[str]) -> list[str]:
    """The fields that arguments of a command line set: `--data.root x`, `--data.root=x`, `--trainer.callbacks+=x`."""
    return [name.rstrip("+") for name, _ in given(list(arguments))]


def given(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The fields that arguments of a command line set, with the text of their values."""
    found = []
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            found.append((name[2:], value if equals else after))
    return found


def parsed(text: str) -> Any:
    """A value as YAML reads it; text that is no YAML is text."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def leaves(name: str, value: Any) -> dict[str, Any]:
    """The fields within a value, by their full names."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {inner: leaf for key, own in value.items() for inner, leaf in leaves(f"{name}.{key}", own).items()}


def undone(overrides: Mapping[str, Any], arguments: Sequence[str]) -> str | None:
    """The field that arguments, which come after the overrides of a model, set to another value; None if none."""
    for name, text in given(arguments):
        value = parsed(text)
        for key, own in overrides.items():
            inside, others = leaves(name, value), leaves(key, own)
            differs = any(others[leaf] != inside[leaf] for leaf in inside.keys() & others.keys())
            if differs or (name == key and value != own):
                return name
    return None
