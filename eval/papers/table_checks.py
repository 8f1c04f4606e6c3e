"""Check the file of a table before the first training; errors suggest the nearest name for an unknown one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.evaluations import EVALUATIONS
from eval.papers.figure import DEFAULT, KINDS, OVER
from eval.papers.measures import MEASURES, OF_CELLS, OF_CONFIG
from eval.papers.results import CHANGES, Results
from eval.papers.table_spec import TableFile
from performer_string.models.config import patch_grid
from performer_string.utils.registry import lookup, nearest
from performer_string.utils.validation import check_type
from train.data.sizes import Size, Views

NEEDED = {
    "data": "sets of images to train on",
    "rows": "the models to train",
    "columns": "what to measure, such as columns: {accuracy (%): {measure: accuracy}}",
}
CHECKPOINTS = ("last", "best")
OF_TWO = ("difference", "p-value")  # measures of a row and its reference


def check_table(table: TableFile) -> None:
    """Raise a ValueError for a missing part, or an unknown name."""
    check_parts(table)
    check_columns(table)
    check_figure(table)
    check_names(table)


def check_parts(table: TableFile) -> None:
    """Raise a ValueError for a table without the parts that its training runs, measures or budgets need."""
    if not table.budgets:
        raise ValueError(f"{table.path} lacks budgets, such as budgets: {{cpu: {{says: one seed}}}}.")
    for name, budget in table.budgets.items():
        try:
            Views.of(budget.views)
        except ValueError as error:
            raise ValueError(f"{table.path}, budget {name}: {error}") from None
    sets = [name for name, spec in table.data.items() if not (spec.recipe or table.recipe)]
    if table.rows and sets:
        raise ValueError(f"{table.path} lacks recipe, the path of a YAML file, for the images of {', '.join(sets)}.")
    if table.evaluation:
        lookup(f"evaluation of {table.path}", table.evaluation, EVALUATIONS)
        return
    for name, content in NEEDED.items():
        if not getattr(table, name):
            raise ValueError(f"{table.path} lacks {name}, {content}. A table that has none names an evaluation.")


def check_columns(table: TableFile) -> None:
    """Raise a ValueError for a column without a measure, with an unknown measure, or with an unknown option."""
    for column, spec in table.columns.items():
        if not isinstance(spec, Mapping) or "measure" not in spec:
            raise ValueError(f"{table.path}: the column {column!r} needs a measure: one of {', '.join(MEASURES)}.")
        measure = lookup(f"measure of {table.path}", str(spec["measure"]), MEASURES)
        where = f"{table.path}: the column {column!r}, of the measure {spec['measure']},"
        check_options(where, spec, [*OF_CELLS, *options_of(measure)])
        check_values(table.path, spec)
        if spec["measure"] in OF_TWO and not (table.reference or any(row.reference for row in table.rows.values())):
            raise ValueError(f"{where} needs a reference: the name of a row that others are compared to.")


def check_measures(table: TableFile, head: str) -> None:
    """Raise a ValueError where columns need one class per image, and a model has a dense head."""
    columns = {} if table.evaluation else table.columns
    trained = [column for column, spec in columns.items() if spec["measure"] not in OF_CONFIG]
    if head == "dense" and trained:
        raise ValueError(
            f"head dense has a class for each pixel, and the column {trained[0]!r} is of the class of each image: take "
            f"evaluation: dense in place of columns, or head: class."
        )


def options_of(measure: Callable[..., Any]) -> list[str]:
    """Return the options of a measure, including those of image results where it passes options on."""
    parameters = inspect.signature(measure).parameters
    names = [name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
    if len(names) < len(parameters):
        names += [name for name in inspect.signature(Results.of_images).parameters if name not in ("self", "what")]
    return [name for name in names if name not in ("results", "group")]


def check_options(where: str, options: Iterable[Any], known: Iterable[str]) -> None:
    """Raise a ValueError for an unknown option, with the nearest known one."""
    known = list(dict.fromkeys(known))
    for name in options:
        if name not in known:
            raise ValueError(f"{where} has no option {name!r}.{nearest(name, known)} Its options: {', '.join(known)}.")


def check_values(path: Path, spec: Mapping[str, Any]) -> None:
    """Raise a ValueError for an option of a column with an unknown name, or a value of another type."""
    for option, kind in (("digits", int), ("scientific", bool), ("size", int | str), ("x", float)):
        if option in spec:
            check_type(f"{option} of a column of {path}", spec[option], kind)
    if "size" in spec:
        try:
            Size.of(spec["size"])
        except ValueError as error:
            raise ValueError(f"{path}: size of a column: {error}") from None
    for name, known in (("checkpoint", dict.fromkeys(CHECKPOINTS)), ("change", CHANGES)):
        if spec.get(name):
            lookup(f"{name} of {path}", str(spec[name]), known)


def check_column_sizes(table: TableFile, patch: Sequence[int]) -> None:
    """Raise a ValueError for a column with images that a model with these patches does not take."""
    for column, spec in table.columns.items():
        if "size" in spec:
            try:
                patch_grid(Size.of(spec["size"]), patch)
            except ValueError as error:
                raise ValueError(f"the column {column!r}: {error}") from None


def check_figure(table: TableFile) -> None:
    """Raise a ValueError for a figure with an unknown kind, column or option."""
    if not table.figure:
        return
    options = {name: value for name, value in table.figure.items() if name != "kind"}
    draw = lookup(f"kind of the figure of {table.path}", str(table.figure.get("kind", DEFAULT)), KINDS)
    known = [name for name in inspect.signature(draw).parameters if name not in ("table", "records", "curves")]
    check_options(f"{table.path}: figure", options, known)
    check_type(f"{table.path}: columns of the figure", options.get("columns", []), list[Any])
    columns = [*options.get("columns", []), *([options["column"]] if options.get("column") else [])]
    for column in columns:
        lookup(f"column in the figure of {table.path}", str(column), table.columns)
    lookup(f"over in the figure of {table.path}", str(options.get("over", "column")), OVER)


def check_names(table: TableFile) -> None:
    """Raise a ValueError for an unknown name of a row, column, set or kind of attention."""
    path, rows, published, budgets = table.path, table.rows, table.published, table.budgets.values()
    named: list[tuple[str, list[str], Mapping[str, Any]]] = [
        (f"set in published of {path}", [block.data for block in published], table.data),
        (f"attention in published of {path}", [block.attention for block in published], table.attention),
        (f"column in published of {path}", [name for block in published for name in block.columns], table.columns),
        (f"row in published of {path}", [row for block in published for row in block.values], rows),
        (f"reference of {path}", [table.reference], rows),
        *((f"row that {row} starts from", [spec.start_from], rows) for row, spec in rows.items()),
        *((f"reference of {row}", [spec.reference], rows) for row, spec in rows.items()),
        *((f"attention of {row}", spec.only, table.attention) for row, spec in rows.items()),
        (f"set of a budget of {path}", [name for b in budgets for name in (*b.sets(table), *b.each)], table.data),
        (f"row of a budget of {path}", [row for b in budgets for row in (*(b.rows or ()), *b.by_row)], rows),
    ]
    for what, names, known in named:
        for name in filter(None, names):  # an empty one is none
            lookup(what, name, known)
    for block in published:
        for row, values in block.values.items():
            if len(values) != len(block.columns):
                raise ValueError(
                    f"{path}: {block.place}: {row} has {len(values)} figures for {len(block.columns)} columns."
                )
    for row, spec in rows.items():
        if spec.start_from and (start := rows[spec.start_from]).start_from:
            raise ValueError(
                f"{path}: {row} starts from {spec.start_from}, which itself starts from {start.start_from}: take a row "
                f"that is trained from scratch."
            )
