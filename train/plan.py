"""What a sweep consists of: a recipe, and the models and seeds that it is trained with."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml

from performer_string import ViT, ViTConfig
from performer_string.utils.registry import lookup
from train.extensions import import_modules
from train.fields import check_fields
from train.optim import OptimConfig

Overrides = Mapping[str, Any]  # {"model.vit.encoding": "rope"}
FIELDS = {"recipe", "seeds", "axes", "models"}
VIT, OPTIM = "model.vit.", "model.optim."


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        model: its name without the seed.
        choices: the name chosen on each axis; none for a model outside the axes.
        seed: of everything.
        overrides: fields of the recipe by their full names.
    """

    model: str
    choices: Mapping[str, str]
    seed: int
    overrides: Overrides

    @property
    def name(self) -> str:
        return f"{self.model}-seed{self.seed}"

    def arguments(self) -> list[str]:
        """The overrides for the command line of `python -m train fit`."""
        pairs = [(f"--{key}", as_argument(value)) for key, value in self.overrides.items()]
        return ["--seed_everything", str(self.seed), *itertools.chain.from_iterable(pairs)]


@dataclass(frozen=True)
class Plan:
    """A sweep: `recipe` is a path from the directory that commands are run in."""

    recipe: Path
    axes: tuple[str, ...]
    runs: tuple[Run, ...]


def as_argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} has to hold fields with their values, not {type(content).__name__}.")
    return content


def check_overrides(where: str, overrides: Any, vit: Mapping[str, Any], optim: Mapping[str, Any]) -> None:
    """An error for what is not a set of overrides, or makes no ViT or OptimConfig with the recipe's own fields of them:
    else it would be found when the turn of that run comes."""
    if not isinstance(overrides, dict):
        raise ValueError(f"{where} has to hold fields of the recipe with their values, not {overrides!r}.")
    known = {VIT + field.name: field for field in fields(ViTConfig)}
    for key in overrides:
        if str(key).startswith(VIT):
            lookup("field", key, known)
    check_fields(str(key) for key in overrides if not str(key).startswith(VIT))

    def together(prefix: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return {**recipe, **{k.removeprefix(prefix): v for k, v in overrides.items() if k.startswith(prefix)}}

    try:
        OptimConfig(**together(OPTIM, optim))
        config = ViTConfig(**together(VIT, vit))
        # Without memory for its weights; what cannot be built so (performer-pytorch) is left to its training.
        with contextlib.suppress(NotImplementedError, RuntimeError), torch.device("meta"):
            ViT(config)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def read_plan(path: Path) -> Plan:
    """A sweep from its YAML file.

        recipe: train/configs/NAME.yaml
        seeds: [0, 1, 2]
        axes:                        # every combination is trained
          attention:
            linear: {model.vit.attention: linear}
            softmax: {model.vit.attention: softmax}
        models:                      # and these, outside the axes
          other: {model.vit.depth: 2}

    Raises:
        ValueError: an unknown field, a name that cannot be a folder's, a name twice, or overrides that make no model.
    """
    content = read_yaml(path)
    for key in content:
        lookup(f"field of the sweep {path}", key, dict.fromkeys(sorted(FIELDS)))
    if "recipe" not in content or not (content.get("axes") or content.get("models")):
        raise ValueError(f"{path} has to name a recipe, and axes or models to train it with.")
    if not isinstance(content["recipe"], str):
        raise ValueError(f"{path}: recipe has to be the path of a YAML file, not {content['recipe']!r}.")
    recipe = Path(content["recipe"])
    content_of_recipe = read_yaml(recipe)
    import_modules(content_of_recipe.get("imports") or [])
    vit, optim = ((content_of_recipe.get("model") or {}).get(part) or {} for part in ("vit", "optim"))
    known = {"vit": fields(ViTConfig), "optim": fields(OptimConfig)}
    for part, own in (("vit", vit), ("optim", optim)):
        for key in own:
            lookup(f"field of model.{part} in {recipe}", key, {field.name: field for field in known[part]})
    for key, kind in (("axes", dict), ("models", dict), ("seeds", list)):
        if not isinstance(content.get(key) or kind(), kind):
            form = "a list of numbers" if kind is list else "names, each with what it changes"
            raise ValueError(f"{path}: {key} has to be {form}, not {content[key]!r}.")
    axes: dict[str, dict[str, Overrides]] = content.get("axes") or {}
    for axis, given in axes.items():
        if not isinstance(given, dict) or not all(isinstance(part or {}, dict) for part in given.values()):
            raise ValueError(f"{path}: the axis {axis} has to hold names, each with what it changes, not {given!r}.")
    for name in itertools.chain(*axes.values(), content.get("models") or {}):
        if not isinstance(name, str):
            raise ValueError(f"{path}: YAML reads the name {name!r} as a {type(name).__name__}: put it in quotes.")
    models: list[tuple[str, dict[str, str], Overrides]] = []
    if axes:
        for names in itertools.product(*axes.values()):
            choices = dict(zip(axes, names, strict=True))
            parts = [axes[axis][name] or {} for axis, name in choices.items()]
            models.append(("-".join(names), choices, {k: v for part in parts for k, v in part.items()}))
    models += [(name, {}, overrides or {}) for name, overrides in (content.get("models") or {}).items()]
    for name, _, overrides in models:
        if not re.fullmatch(r"[\w.+-]+", name):
            raise ValueError(f"{path}: the name {name!r} becomes a folder's: letters, digits and . + - _ only.")
        check_overrides(f"{path}: {name}", overrides, vit, optim)
    names_ = [name for name, _, _ in models]
    twice = sorted({name for name in names_ if names_.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: two models have the name {twice[0]!r}.")
    seeds = content.get("seeds", [0])
    if not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds has to hold different whole numbers, 0 or more, not {seeds}.")
    return Plan(recipe, tuple(axes), tuple(Run(name, chosen, s, o) for s in seeds for name, chosen, o in models))


def select(plan: Plan, conditions: Sequence[str]) -> list[Run]:
    """The runs that meet every condition `AXIS=NAME,NAME`, where AXIS may also be `model` or `seed`.

    Raises:
        ValueError: a condition of another form, or an unknown axis or name, with the nearest known one.
    """
    chosen = list(plan.runs)
    for condition in conditions:
        axis, equals, names = condition.partition("=")
        if not equals:
            raise ValueError(f"--only takes AXIS=NAME,NAME, like seed=0,1, not {condition!r}.")
        lookup("axis", axis, dict.fromkeys([*plan.axes, "model", "seed"]))
        known = {label(run, axis): None for run in plan.runs if label(run, axis)}
        wanted = names.split(",")
        for name in wanted:
            lookup(axis, name, known)
        chosen = [run for run in chosen if label(run, axis) in wanted]
    return chosen


def label(run: Run, axis: str) -> str:
    """What a run is on an axis; empty where it lies outside."""
    return {"model": run.model, "seed": str(run.seed)}.get(axis) or run.choices.get(axis, "")
