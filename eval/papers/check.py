"""Check a table before the first training; errors suggest the nearest name for an unknown one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_origin

from eval.evaluations import EVALUATIONS
from eval.papers.cells import number_format
from eval.papers.figure import DEFAULT, KINDS
from eval.papers.measures import MEASURES, OF_CONFIG
from eval.papers.results import Results
from eval.papers.table import TableFile
from performer_string.models.config import patch_grid
from performer_string.utils.registry import choose, lookup, nearest
from performer_string.utils.validation import check_type
from train.data.sizes import Size

NEEDED = {
    "data": "sets of images to train on",
    "rows": "the models to train",
    "columns": "what to measure, such as columns: {accuracy (%): {measure: accuracy}}",
}
GIVEN = ("self", "results", "group", "value", "table", "cells", "curves")  # parameters that are no options
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
        check_options(where, spec, number_format, measure, *([Results.of_images] if takes_more(measure) else []))
        if spec["measure"] in OF_TWO and not (table.reference or any(row.reference for row in table.rows.values())):
            raise ValueError(f"{where} needs a reference: the name of a row that others are compared to.")


def takes_more(function: Callable[..., Any]) -> bool:
    """Return whether a function passes further options on."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


def check_options(where: str, options: Mapping[str, Any], *functions: Callable[..., Any]) -> None:
    """Raise a ValueError for an option that no function has, or for a value of another type or name than annotated."""
    parameters = [p for each in functions for p in inspect.signature(each, eval_str=True).parameters.values()]
    known = {p.name: p.annotation for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in GIVEN}
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{where} has no option {name!r}.{nearest(name, known)} Its options: {', '.join(known)}.")
        check_type(f"{where} {name}", value, known[name])
        if get_origin(known[name]) is Literal:
            choose(f"{name} of {where}", value, known[name])


def check_model(table: TableFile, head: str, outputs: str, patch: Sequence[int]) -> None:
    """Raise a ValueError for a column that a model of this head, with these outputs and patches, cannot have."""
    for column, spec in {} if table.evaluation else table.columns.items():
        if head == "dense" and spec["measure"] not in OF_CONFIG:
            raise ValueError(
                f"head dense has a class for each pixel, and the column {column!r} is of the class of each image: take "
                f"evaluation: dense in place of columns, or head: class."
            )
        if outputs != "class" and spec["measure"] not in OF_CONFIG:
            raise ValueError(
                f"the images have {outputs}, and the column {column!r} is of one class of each image: take evaluation: "
                f"compare in place of columns, whose table has the measures of {outputs}."
            )
        if "size" in spec:
            try:
                patch_grid(Size.of(spec["size"]), patch)
            except ValueError as error:
                raise ValueError(f"the column {column!r}: {error}") from None


def check_figure(table: TableFile) -> None:
    """Raise a ValueError for a figure with an unknown kind, column or option."""
    options = {name: value for name, value in table.figure.items() if name != "kind"}
    draw = lookup(f"kind of the figure of {table.path}", str(table.figure.get("kind", DEFAULT)), KINDS)
    check_options(f"{table.path}: figure", options, draw)
    for column in [*options.get("columns", []), *filter(None, [options.get("column")])]:
        lookup(f"column in the figure of {table.path}", str(column), table.columns)


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
