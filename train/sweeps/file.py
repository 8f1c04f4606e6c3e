"""The file of a sweep: a recipe, and the models and seeds to train it with."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from performer_string import ViT, ViTConfig
from performer_string.utils.registry import lookup
from performer_string.utils.validation import check_types
from train.command.arguments import existing_recipe
from train.command.recipe import check_fields, current_recipe, options_of, unknown_field
from train.optim import OptimConfig
from train.utils.imports import import_modules, module_names, naming_imports
from train.utils.yaml_file import read_value, read_yaml

IMPORTS = "imports"

Item = TypeVar("Item")
Overrides = Mapping[str, Any]  # {"model.vit.encoding": "rope"}


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        model: name of the model without the seed.
        choices: chosen name on each axis; empty for a model outside the axes.
        seed: seed of the whole training run.
        overrides: overridden fields of the recipe, by full name.
    """

    model: str
    choices: Mapping[str, str]
    seed: int
    overrides: Overrides

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.model}-seed{self.seed}"

    def arguments(self) -> list[str]:
        """Return the overrides as options of `python -m train fit`."""
        texts = ((f"--{k}", v if isinstance(v, str) else json.dumps(v)) for k, v in self.overrides.items())
        return ["--seed_everything", str(self.seed), *itertools.chain.from_iterable(texts)]

    def label(self, axis: str) -> str:
        """Return the name of the run on an axis, `model` or `seed`; empty for a run outside the axis."""
        return {"model": self.model, "seed": str(self.seed)}.get(axis) or self.choices.get(axis, "")


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep, with the names of its axes.

    Attributes:
        recipe: path of the recipe, relative to the working directory.
        axes: names of the axes.
        runs: runs, one for each model and seed.
    """

    recipe: Path
    axes: tuple[str, ...]
    runs: tuple[Run, ...]


@dataclass
class SweepFile:
    """The fields of a sweep's file.

    Attributes:
        recipe: path of a recipe, or the name of one in `train/configs`.
        seeds: seeds; each model is trained once for each of them.
        axes: overrides of each choice on each axis, by name; every combination is trained.
        models: overrides of further models outside the axes, by name.
        fields: overrides of every run, over which axes and models take precedence.
        imports: modules of the user that every run imports, after those of the recipe.
    """

    recipe: str
    seeds: list[int] = field(default_factory=lambda: [0])
    axes: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    imports: list[str] | str = field(default_factory=list)

    def __post_init__(self) -> None:
        self.axes, self.models, self.fields = self.axes or {}, self.models or {}, self.fields or {}  # empty in YAML
        self.imports = self.imports or []
        check_types(self)
        self.imports = module_names(self.imports)
        for axis, choices in self.axes.items():
            if not isinstance(choices, dict) or not all(isinstance(part or {}, dict) for part in choices.values()):
                raise ValueError(f"the axis {axis} must hold names, each with what it changes, not {choices!r}.")
        for name in itertools.chain(*self.axes.values(), self.models):
            if not isinstance(name, str):
                raise ValueError(f"YAML reads the name {name!r} as a {type(name).__name__}: put it in quotes.")
        if not self.axes and not self.models:
            raise ValueError("there must be axes or models to train the recipe with.")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must hold different whole numbers, 0 or more, not {self.seeds}.")

    def combinations(self) -> list[tuple[str, dict[str, str], Any]]:
        """Return the name, choices and overrides of each model."""
        models: list[tuple[str, dict[str, str], Any]] = []
        for names in itertools.product(*self.axes.values()) if self.axes else ():
            choices = dict(zip(self.axes, names, strict=True))
            parts = [self.axes[axis][name] or {} for axis, name in choices.items()]
            models.append(("-".join(names), choices, {k: v for part in parts for k, v in part.items()}))
        models += [(name, {}, {} if changes is None else changes) for name, changes in self.models.items()]
        common = self.fields
        return [(name, of, {**common, **part} if isinstance(part, dict) else part) for name, of, part in models]


def check_overrides(overrides: Any, recipe: Mapping[str, Any]) -> None:
    """Check before any training that overrides and the recipe make a valid ViT and OptimConfig.

    Args:
        overrides: values of fields, by full name.
        recipe: fields of the recipe.

    Raises:
        ValueError: an unknown field, or a value for which no model can be built.
    """
    if not isinstance(overrides, dict):
        raise ValueError(f"it must hold fields of the recipe with their values, not {overrides!r}.")
    values: dict[str, dict[str, Any]] = {}
    for part, kind in (("vit", ViTConfig), ("optim", OptimConfig)):
        prefix = f"model.{part}."
        known = [prefix + each.name for each in fields(kind)]
        values[part] = dict((recipe.get("model") or {}).get(part) or {})
        values[part] |= {k.removeprefix(prefix): v for k, v in overrides.items() if str(k).startswith(prefix)}
        for name in values[part]:
            if prefix + name not in known:
                raise unknown_field(prefix + name, known)
    check_fields(map(str, overrides))
    OptimConfig(**values["optim"])
    config = ViTConfig(**values["vit"])
    # The meta device needs no memory for weights. Models that cannot be built on it (performer-pytorch) are unchecked.
    with contextlib.suppress(NotImplementedError, RuntimeError), torch.device("meta"):
        ViT(config)


def with_imports(overrides: Any, inherited: Sequence[str]) -> Any:
    """Import the modules of a model, and return its overrides with those of the recipe and the sweep beside its own."""
    if not isinstance(overrides, dict):
        return overrides
    names = list(dict.fromkeys([*inherited, *module_names(overrides.get(IMPORTS))]))
    import_modules(names)
    return {**overrides, IMPORTS: names} if names else overrides


def read_sweep(path: Path, arguments: Sequence[str] = ()) -> Sweep:
    """Return the sweep in a YAML file.

        recipe: train/configs/NAME.yaml   # or NAME
        seeds: [0, 1, 2]
        axes:                        # every combination is trained
          attention:
            linear: {model.vit.attention: linear}
            softmax: {model.vit.attention: softmax}
        models:                      # and these, outside the axes
          other: {model.vit.depth: 2}
        fields:                      # of every run
          data.source: folder
        imports: [mine]              # modules of the user

    Args:
        path: path of the file.
        arguments: arguments of `python -m train fit` for all runs, whose modules are imported too.

    Raises:
        FileNotFoundError: a missing file or recipe.
        ValueError: an unknown field, a name that cannot be a folder's, a repeated name, or overrides without a model.
    """
    content = read_yaml(path)
    known = {each.name: None for each in fields(SweepFile)}
    for key in content:
        lookup(f"field of the sweep {path}", key, known)
    if not isinstance(content.get("recipe"), str):
        raise ValueError(f"{path}: recipe must be a name or the path of a YAML file, not {content.get('recipe')!r}.")
    recipe_path = existing_recipe(content["recipe"])
    recipe = current_recipe(read_yaml(recipe_path))
    import_modules(recipe.get(IMPORTS))
    for text in (value for name, value in options_of(arguments) if name == IMPORTS):
        import_modules(read_value(text))
    where = str(path)
    try:
        sweep = SweepFile(**content)
        models = sweep.combinations()
        names = [name for name, _, _ in models]
        for name in names:
            if not re.fullmatch(r"[\w.+-]+", name):
                raise ValueError(f"the name {name!r} becomes a folder's: letters, digits and . + - _ only.")
            if names.count(name) > 1:
                raise ValueError(f"two models have the name {name!r}.")
        models = [(name, choices, current_recipe(overrides)) for name, choices, overrides in models]
        if sweep.imports or any(isinstance(part, dict) and IMPORTS in part for _, _, part in models):
            inherited = [*module_names(recipe.get(IMPORTS)), *sweep.imports]
            models = [(name, choices, with_imports(part, inherited)) for name, choices, part in models]
        for name, _, overrides in models:
            where = f"{path}: {name}"
            with naming_imports("imports: [MODULE] in the sweep or its recipe"):
                check_overrides(overrides, recipe)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    runs = (Run(name, choices, seed, overrides) for seed in sweep.seeds for name, choices, overrides in models)
    return Sweep(recipe_path, tuple(sweep.axes), tuple(runs))


def select(
    items: Sequence[Item], conditions: Sequence[str], axes: Sequence[str], label: Callable[[Item, str], str], like: str
) -> list[Item]:
    """Return the items that meet every condition `AXIS=NAME,NAME`.

    Raises:
        ValueError: a malformed condition, or an unknown axis or name; the message has the nearest one.
    """
    chosen = list(items)
    for condition in conditions:
        axis, equals, text = condition.partition("=")
        if not equals:
            raise ValueError(f"--only takes AXIS=NAME,NAME, like {like}, not {condition!r}.")
        lookup("axis", axis, dict.fromkeys(axes))
        names, known = text.split(","), {label(item, axis): None for item in items if label(item, axis)}
        for name in names:
            lookup(axis, name, known)
        chosen = [item for item in chosen if label(item, axis) in names]
    return chosen


def select_runs(sweep: Sweep, conditions: Sequence[str]) -> list[Run]:
    """Return the runs that `select` chooses, where AXIS may also be `model` or `seed`."""
    return select(sweep.runs, conditions, [*sweep.axes, "model", "seed"], Run.label, "seed=0,1")
