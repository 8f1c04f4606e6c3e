"""The parts of a table: rows, sets of images, budgets and published figures; `table_file.py` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from performer_string.utils.registry import lookup
from performer_string.utils.validation import check_type, check_types


@dataclass
class Part:
    """A part of the file; the types of its fields and of entries in mappings are checked."""

    def __post_init__(self) -> None:
        check_types(self)
        for name, kind in get_type_hints(type(self)).items():
            for key, value in getattr(self, name).items() if get_origin(kind) is dict else ():
                check_type(f"{key} of {name}", value, get_args(kind)[1])


@dataclass
class RowSpec(Part):
    """A row: the fields in which its models differ from others.

    Attributes:
        label: name in the printed table; by default the name in the file.
        fields: fields of the recipe.
        start_from: name of a row whose last checkpoint this one starts from.
        pending: reason why the model may not exist yet; if it cannot be built, the row is "not built".
        only: kinds of attention of the row; all by default.
        reference: name of the row for differences and tests, instead of the table's reference.
        x: coordinate on the axis of a figure.
    """

    label: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    start_from: str = ""
    pending: str = ""
    only: list[str] = field(default_factory=list)
    reference: str = ""
    x: float | None = None


@dataclass
class DataSpec(Part):
    """A set of images.

    Attributes:
        label: name in the printed table; by default the name in the file.
        fields: fields of the recipe.
        recipe: path or name of a recipe to use instead of the table's.
        images: number of training images, for estimates of the time without the images.
        pending: reason why the set may not be available, as in a row.
        x: coordinate on the axis of a figure.
    """

    label: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""
    images: int = 0
    pending: str = ""
    x: float | None = None


@dataclass
class Budget(Part):
    """An amount of training.

    Attributes:
        says: short description for the title.
        seeds: seeds of the training runs.
        fields: recipe fields that override those of the table and the data, but not those of attention and rows.
        each: further fields, by set of images.
        by_row: further fields, by row.
        data: sets to train on, all by default; a mapping gives the set of the source that each stands for.
        rows: rows to train; all by default.
        images: number of test images; 0 for all.
        views: number of views of each test video, segments x crops; their mean is one answer.
        arguments: arguments of the evaluation, where the table is made by one.
    """

    says: str = ""
    seeds: list[int] = field(default_factory=lambda: [0])
    fields: dict[str, Any] = field(default_factory=dict)
    each: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_row: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, str] | list[str] | None = None
    rows: list[str] | None = None
    images: int = 0
    views: str = "1x1"
    arguments: list[str] = field(default_factory=list)

    def sets(self, table: TableFile) -> dict[str, str]:
        """Return the sets to train on, each with the set whose published values are shown beside it."""
        chosen = list(table.data) if self.data is None else self.data
        return dict(chosen) if isinstance(chosen, Mapping) else {name: name for name in chosen}


@dataclass
class Published(Part):
    """Values of the source, as printed there.

    Attributes:
        place: table, figure or section of the source.
        data: name of the set of images.
        columns: names of columns in this table.
        values: value for each column, by row; null where the source has none.
        attention: kind of attention, where the source has several.
    """

    place: str
    data: str
    columns: list[str]
    values: dict[str, list[Any]]
    attention: str = ""


@dataclass
class TableFile(Part):
    """The content of a table's file; `table_file.py` has an example.

    Attributes:
        path: path of the file.
        name: name of the table.
        title, source, shows, differs: title, origin, topic and differences to the source, one line each.
        recipe: path of a recipe, or the name of one in `train/configs`.
        imports: modules of the user that every training imports, after those of its recipe and fields.
        fields: recipe fields of every training run.
        data, attention, rows, columns, budgets: parts of the table, by name.
        published: published values of the source.
        reference: name of the reference row of differences and tests.
        evaluation: name of the evaluation in `python -m eval` that makes the table, instead of columns.
        figure: kind and options of the figure; see eval/papers/figure.py.
        aside: errors or ambiguities of the source, in one line.
        runs: name of another table that shares its training runs with this one.
    """

    path: Path
    name: str
    title: str
    source: str = ""
    shows: str = ""
    differs: str = ""
    aside: str = ""
    runs: str = ""
    recipe: str = ""
    reference: str = ""
    evaluation: str = ""
    imports: list[str] | str = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    figure: dict[str, Any] = field(default_factory=dict)
    data: dict[str, DataSpec] = field(default_factory=dict)
    attention: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, RowSpec] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)

    def budget(self, name: str) -> Budget:
        """Return a budget by name."""
        return lookup(f"budget of {self.name}", name, self.budgets)

    def published_text(self, data: str, row: str, column: str, attention: str) -> str:
        """Return a value of the source, but that YAML reads 0.880 as the number 0.88; empty where it has none."""
        for block in self.published:
            asked = block.data == data and block.attention in ("", attention)
            if asked and column in block.columns and row in block.values:
                value = block.values[row][block.columns.index(column)]
                return "" if value is None else str(value)
        return ""

    def places(self) -> str:
        """Return the places of the published values in the source."""
        return ", ".join(dict.fromkeys(block.place for block in self.published))
