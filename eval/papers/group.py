"""The training runs of one model on one set of images: a line of a table, for one kind of attention."""

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
PLANNED, OUTSIDE = "planned", "not in this budget"  # states of a group
LACKING, NOT_BUILT = "no ", "not built"  # beginnings of states, followed by what is missing


@dataclass
class Group:
    """The training runs of one model on one set of images, which differ only in their seed."""

    data: str  # name of the set in the table's file, as of the row and the kind of attention
    row: str
    attention: str
    stands_for: str  # name of the set whose published figures are shown beside this one
    recipe: Path
    overrides: dict[str, Any]  # recipe fields with other values, by full name
    state: str = PLANNED  # or why there is no training: `not in this budget`, `not built: ...`, `no images: ...`
    images: int = 0  # number of training images where the table states it
    seeds: list[int] = field(default_factory=list)  # of the training runs, including those whose images are missing
    folders: dict[int, Path] = field(default_factory=dict)  # folders of the runs, by seed
    start_from: Group | None = None  # whose checkpoint of the same seed each run starts from; None for a new start

    @property
    def key(self) -> tuple[str, str, str]:
        """Set, row and kind of attention."""
        return self.data, self.row, self.attention

    @property
    def model(self) -> str:
        """The name of the runs, without the seed."""
        return ".".join(filter(None, self.key))

    def settings(self) -> dict[str, Any]:
        """Return the fields of the recipe with the overrides, by full name."""
        recipe = current_recipe(read_yaml(self.recipe))
        return {k: v for name, value in recipe.items() for k, v in flat_fields(name, value)} | self.overrides

    @property
    def source(self) -> str:
        """The name of the source of the images."""
        return str(self.settings().get("data.source", "arrow"))

    def config(self) -> ViTConfig:
        """Return the configuration of the group's models."""
        known = {f"model.vit.{each.name}" for each in fields(ViTConfig)}
        settings = self.settings()
        return ViTConfig(**{name.removeprefix("model.vit."): settings[name] for name in known & settings.keys()})

    def finished(self) -> dict[int, Path]:
        """Return the folders of the finished runs, by seed."""
        return {seed: path for seed, path in self.folders.items() if (path / METRICS).is_file()}

    def left(self) -> int:
        """Return the number of unfinished training runs, including those whose images are missing."""
        return len(self.seeds) - len(self.finished())

    def runs(self) -> Iterator[Run]:
        """Yield the runs for a sweep; runs they start from must be finished."""
        for seed, folder in self.folders.items():
            start = (
                {} if self.start_from is None else {"init_from": str(last_checkpoint(self.start_from.folders[seed]))}
            )
            run = Run(self.model, dict(zip(AXES, self.key, strict=True)), seed, {**self.overrides, **start})
            assert folder.name == run.name
            yield run


def last_checkpoint(run: Path) -> Path:
    """Return the path of a run's last checkpoint."""
    return run / CHECKPOINTS / LAST


def flat_fields(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a recipe by full name; options of a part stay one field, as `model.vit.feature_options`."""
    if isinstance(value, Mapping) and value and name.count(".") < 2:
        for key, part in value.items():
            yield from flat_fields(f"{name}.{key}", part)
    else:
        yield name, value
