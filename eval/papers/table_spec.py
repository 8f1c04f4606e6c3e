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
    """A part of the file, whose fields, and their entries where they are by name, are checked against their types."""

    def __post_init__(self) -> None:
        check_types(self)
        for name, kind in get_type_hints(type(self)).items():
            for key, value in getattr(self, name).items() if get_origin(kind) is dict else ():
                check_type(f"{key} of {name}", value, get_args(kind)[1])


@dataclass
class RowSpec(Part):
    """A row: what its models have that others have not.

    Attributes:
        label: its name in the table; that in the file by default.
        fields: of the recipe.
        start_from: another row, whose last checkpoint this one starts from.
        pending: why the row may not be built yet. A row that has this and makes no model is "not built".
        only: the kinds of attention that the row has; all by default.
        reference: the row that its difference and tests are to, in place of the table's.
        x: its place on the axis of a figure.
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
        label: its name in the table; that in the file by default.
        fields: of the recipe.
        recipe: in place of the table's.
        images: how many there are to train on, for estimates of the time where they are not at hand.
        pending: as of a row.
        x: its place on the axis of a figure.
    """

    label: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""
    images: int = 0
    pending: str = ""
    x: float | None = None


@dataclass
class Budget(Part):
    """How much is trained.

    Attributes:
        says: what that is, in a few words, for the title.
        seeds: of the trainings.
        fields: of the recipe, in place of those of the table and the data; attention and rows come after them.
        each: further fields, by set of images.
        by_row: further fields, by row.
        data: the sets that are trained on; all by default. A mapping says which set of the source each stands for.
        rows: those that are trained; all by default.
        images: to test on; 0 for all.
        views: of each video to test on, segments x crops, whose mean is one answer.
        arguments: of the evaluation, where the table is one.
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
        """Return the sets that are trained on, each with the set whose published figures stand beside it."""
        chosen = list(table.data) if self.data is None else self.data
        return dict(chosen) if isinstance(chosen, Mapping) else {name: name for name in chosen}


@dataclass
class Published(Part):
    """Figures of the source, as they are printed there.

    Attributes:
        place: table, figure or section.
        data: the set that they are of.
        columns: names of columns of this table.
        values: a figure for each column, by row; null where the source has none.
        attention: the kind that they are of, where the source has several.
    """

    place: str
    data: str
    columns: list[str]
    values: dict[str, list[Any]]
    attention: str = ""


@dataclass
class TableFile(Part):
    """The content of a file; see the head of this module.

    Attributes:
        path: of the file.
        name: of the table.
        title, source, shows, differs: lines of text.
        recipe: the path of a configuration, or the name of one in `train/configs`.
        fields: of every training.
        data, attention, rows, columns, budgets: by name.
        published: of the source.
        reference: the row that differences and tests are to.
        evaluation: an evaluation of `python -m eval` that the table is, in place of columns.
        figure: its kind and options, see eval/papers/figure.py.
        aside: what is wrong or unclear in the source, in one line.
        runs: another table, whose trainings are the same and are shared.
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

    def published_value(self, data: str, row: str, column: str, attention: str) -> Any:
        """Return a figure of the source; None where it has none."""
        for block in self.published:
            asked = block.data == data and block.attention in ("", attention)
            if asked and column in block.columns and row in block.values:
                return block.values[row][block.columns.index(column)]
        return None

    def places(self) -> str:
        """Return the places of the published figures."""
        return ", ".join(dict.fromkeys(block.place for block in self.published))
