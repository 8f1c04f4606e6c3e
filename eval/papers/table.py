"""What the file of a table may say: recipe, sets of images, rows, columns, budgets and published values.

A table is a YAML file, `experiments/papers/NAME/table.yaml` or one of your own, and `read.py` reads it:

    title: Sparse Cayley-STRING, table 1
    source: who published it, where
    shows: what it compares, in one line
    recipe: train/configs/NAME.yaml             # or NAME
    imports: [mine]                             # modules of one's own
    fields: {model.vit.pool: cls}               # of every training
    data:                                       # sets of images; every row is trained on each
      cifar10: {fields: {data.source: cifar10}}
    attention:                                  # columns beside each other
      softmax: {model.vit.attention: softmax}
      linear: {model.vit.attention: linear}
    rows:
      dense: {label: Dense, fields: {model.vit.encoding: cayley-string}}
    columns:
      accuracy (%): {measure: accuracy}         # a name in eval/papers/measures.py, with its options
    published:
      - {place: table 1, data: cifar10, columns: [accuracy (%)], values: {dense: [73.69]}}
    differs: what is not as in the source, in one line
    budgets:
      cpu: {says: "2 epochs", seeds: [0], fields: {trainer.max_epochs: 2}}

With `extends: NAME` it inherits the recipe, data, attention, rows and budgets that it lacks from that table. With
`runs: NAME` the two share their training runs, which must be the same.
"""

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
    """A row: the recipe fields in which its models differ from others."""

    label: str = ""  # name in the printed table; by default the name in the file
    fields: dict[str, Any] = field(default_factory=dict)  # fields of the recipe
    start_from: str = ""  # name of a row whose last checkpoint this one starts from
    pending: str = ""  # reason why the model may not exist yet; if it cannot be built, the row is "not built"
    reference: str = ""  # name of the row for differences and tests, instead of the table's reference
    x: float | None = None  # coordinate on the axis of a figure


@dataclass
class DataSpec(Part):
    """A set of images."""

    label: str = ""  # name in the printed table; by default the name in the file
    fields: dict[str, Any] = field(default_factory=dict)  # fields of the recipe
    recipe: str = ""  # path or name of a recipe to use instead of the table's
    images: int = 0  # number of training images, for estimates of the time without the images
    x: float | None = None  # coordinate on the axis of a figure


@dataclass
class Budget(Part):
    """An amount of training."""

    says: str = ""  # short description for the title
    seeds: list[int] = field(default_factory=lambda: [0])  # seeds of the training runs
    fields: dict[str, Any] = field(default_factory=dict)  # go before those of table and data, not of attention and rows
    each: dict[str, dict[str, Any]] = field(default_factory=dict)  # further fields, by set of images
    by_row: dict[str, dict[str, Any]] = field(default_factory=dict)  # further fields, by row
    data: dict[str, str] | list[str] | None = None  # sets, all by default; or each with the source's that it stands for
    rows: list[str] | None = None  # rows to train; all by default
    images: int = 0  # number of test images; 0 for all
    views: str = "1x1"  # number of views of each test video, segments x crops; their mean is one answer
    arguments: list[str] = field(default_factory=list)  # of the evaluation, where the table is made by one

    def sets(self, table: TableFile) -> dict[str, str]:
        """Return the sets to train on, each with the set whose published values are shown beside it."""
        chosen = list(table.data) if self.data is None else self.data
        return dict(chosen) if isinstance(chosen, Mapping) else {name: name for name in chosen}


@dataclass
class Published(Part):
    """Values of the source, as printed there."""

    place: str  # table, figure or section of the source
    data: str  # name of the set of images
    columns: list[str]  # names of columns in this table
    values: dict[str, list[Any]]  # value for each column, by row; null where the source has none
    attention: str = ""  # kind of attention, where the source has several


@dataclass
class TableFile(Part):
    """The content of a table's file."""

    path: Path
    name: str
    title: str
    source: str = ""  # origin, in one line
    shows: str = ""  # topic, in one line
    differs: str = ""  # differences to the source, in one line
    aside: str = ""  # errors or ambiguities of the source, in one line
    runs: str = ""  # name of another table that shares its training runs with this one
    recipe: str = ""  # path of a recipe, or the name of one in `train/configs`
    reference: str = ""  # name of the reference row of differences and tests
    evaluation: str = ""  # name of the evaluation in `python -m eval` that makes the table, instead of columns
    imports: list[str] | str = field(default_factory=list)  # modules of the user, after those of the recipe and fields
    fields: dict[str, Any] = field(default_factory=dict)  # recipe fields of every training run
    figure: dict[str, Any] = field(default_factory=dict)  # kind and options of the figure; see figure.py
    data: dict[str, DataSpec] = field(default_factory=dict)
    attention: dict[str, dict[str, Any]] = field(default_factory=dict)  # recipe fields of each kind of attention
    rows: dict[str, RowSpec] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)  # measure of each column, with its options; see measures.py
    budgets: dict[str, Budget] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)

    def budget(self, name: str) -> Budget:
        """Return a budget by name."""
        return lookup(f"budget of {self.name}", name, self.budgets)

    def label(self, axis: str, name: str) -> str:
        """Return the label of a set (`data`), a `row` or a kind of attention; its name where it has no label."""
        choice = self.data.get(name) if axis == "data" else self.rows.get(name) if axis == "row" else None
        return (choice and choice.label) or name

    def published_text(self, data: str, row: str, column: str, attention: str) -> str:
        """Return a value of the source, but that YAML reads 0.880 as the number 0.88; empty where it has none."""
        for block in self.published:
            asked = block.data == data and block.attention in ("", attention)
            if asked and column in block.columns and row in block.values:
                value = block.values[row][block.columns.index(column)]
                return "" if value is None else str(value)
        return ""
