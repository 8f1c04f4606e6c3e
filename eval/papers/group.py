"""One cell of a table as a group of training runs: one set, row and kind of attention, in all seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from performer_string import ViTConfig
from train.command.recipe import current_recipe
from train.runs.folder import CHECKPOINTS, LAST, METRICS
from train.sweeps.file import Run
from train.utils.yaml_file import read_yaml

AXES = ("data", "row", "attention")
LACKING = "no "  # prefix of the states for missing images


@dataclass
class Group:
    """The training runs of one cell, which differ only in their seed.

    Attributes:
        data, row, attention: names of the set, row and kind of attention in the table's file.
        stands_for: name of the set whose published figures are shown beside this one.
        recipe: path of the recipe.
        overrides: recipe fields with other values, by full name.
        state: `planned`, or why there is no training: `not in this budget`, `not built: ...`, `no images: ...`.
        images: number of training images where the table states it; otherwise 0.
        seeds: seeds of the training runs, including those whose images are missing.
        folders: folders of the runs, by seed.
        start_from: group whose checkpoint of the same seed each run starts from; None for a new start.
    """

    data: str
    row: str
    attention: str
    stands_for: str
    recipe: Path
    overrides: dict[str, Any]
    state: str = "planned"
    images: int = 0
    seeds: list[int] = field(default_factory=list)
    folders: dict[int, Path] = field(default_factory=dict)
    start_from: Group | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Set, row and kind of attention."""
        return self.data, self.row, self.attention

    @property
    def model(self) -> str:
        """The name of the runs, without the seed."""
        return ".".join(name for name in self.key if name)

    def settings(self) -> dict[str, Any]:
        """Return the fields of the recipe with the overrides, by full name."""
        recipe = current_recipe(read_yaml(self.recipe))
        return {k: v for name, value in recipe.items() for k, v in flat_fields(name, value)} | self.overrides

    def config(self) -> ViTConfig:
        """Return the configuration of the group's models."""
        known = {f"model.vit.{each.name}" for each in fields(ViTConfig)}
        settings = self.settings()
        return ViTConfig(**{name.removeprefix("model.vit."): settings[name] for name in known & settings.keys()})

    def leave_out(self, state: str) -> None:
        """Plan no training runs, for the reason `state`."""
        self.state, self.folders = state, {}
        self.seeds = self.seeds if state.startswith(LACKING) else []

    def left(self) -> int:
        """Return the number of unfinished training runs, including those whose images are missing."""
        return len(self.seeds) - len(self.finished())

    def finished(self) -> dict[int, Path]:
        """Return the folders of the finished runs, by seed."""
        return {seed: path for seed, path in self.folders.items() if (path / METRICS).is_file()}

    def runs(self) -> Iterator[Run]:
        """Yield the runs for a sweep; runs they start from must be finished."""
        choices = {"data": self.data, "row": self.row, "attention": self.attention}
        for seed, folder in self.folders.items():
            overrides = dict(self.overrides)
            if self.start_from is not None:
                overrides["init_from"] = str(self.start_from.folders[seed] / CHECKPOINTS / LAST)
            assert folder.name == f"{self.model}-seed{seed}"
            yield Run(self.model, choices, seed, overrides)


def flat_fields(name: str, value: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a recipe by full name; options of a part stay one field, as `model.vit.feature_options`."""
    if isinstance(value, Mapping) and value and name.count(".") < depth - 1:
        for key, part in value.items():
            yield from flat_fields(f"{name}.{key}", part, depth)
    else:
        yield name, value
