"""The cells of a table: rows of its CSV file, one for each set, row, attention and column, and their printed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eval.papers.group import NOT_BUILT, OUTSIDE, PLANNED, Group
from eval.papers.measures import MEASURES, OF_CONFIG, SPREADS
from eval.papers.results import NoValueError, Results
from eval.papers.table import TableFile
from eval.report import Row
from eval.statistics import holm
from train.utils.progress import progress

SHOWN = ("measure", "digits", "scientific", "x")  # options of a column that no measure takes
MEASURED, NOT_RUN = "measured", "not run"  # states of a cell, or `NOT_BUILT`
DIGITS = {
    "parameters": 3, "gigaflops": 3, "ms-per-batch": 2, "ms-per-image": 3, "loss": 2, "seconds-per-epoch": 1,
    "seconds-in-total": 0,
}  # fmt: skip


def all_cells(table: TableFile, results: Results) -> Iterator[dict[str, Any]]:
    """Yield each cell, measured where its runs are finished, with its published value."""
    bar = progress(results.groups.values(), desc="cells", unit="group")
    for group in bar:
        bar.set_postfix_str(group.model)
        for column, spec in table.columns.items():
            state = state_of(group, spec["measure"])
            value, text = None, ""
            if state == MEASURED:
                try:
                    options = {name: option for name, option in spec.items() if name not in SHOWN}
                    value = MEASURES[spec["measure"]](results, group, **options)
                except NoValueError as reason:
                    text = str(reason)
            numbers = (None, None, None) if value is None else (value.value, value.low, value.high)
            yield {
                "data": group.data,
                "stands for": group.stands_for,
                "row": group.row,
                "attention": group.attention,
                "column": column,
                "published": table.published_text(group.stands_for, group.row, column, group.attention),
                **{
                    name: "" if number is None else float(f"{number:.8g}")
                    for name, number in zip(("value", "low", "high"), numbers, strict=True)
                },
                "text": text,
                "holm": "",
                "state": state,
                "why": group.state if state != MEASURED and group.state != PLANNED else "",
                "seeds": (value and value.seeds) or len(group.finished()),
                "images": (value and value.images) or "",
            }


def state_of(group: Group, measure: str) -> str:
    """Return `measured`, or why a cell has no value: `not built`, `not run`."""
    if group.state.startswith(NOT_BUILT):
        return NOT_BUILT
    can_be_measured = group.state != OUTSIDE if measure in OF_CONFIG else bool(group.finished())
    return MEASURED if can_be_measured else NOT_RUN


def correct_tests(table: TableFile, cells: Sequence[dict[str, Any]]) -> None:
    """Add p-values with Holm's correction, for the paired and for the unpaired tests of a table.

    Columns that show one test in two forms count once.
    """
    families: dict[str, dict[tuple[Any, ...], list[dict[str, Any]]]] = {"paired": {}, "unpaired": {}}
    for cell in cells:
        spec = table.columns[cell["column"]]
        if is_p_value(spec) and cell["value"] != "":
            named = {"test": "paired", "what": "p", **{name: v for name, v in spec.items() if name not in SHOWN}}
            options = tuple(sorted((name, str(value)) for name, value in named.items()))
            key = cell["data"], cell["row"], cell["attention"], options
            families[spec.get("test", "paired")].setdefault(key, []).append(cell)
    for tests in families.values():
        corrected = holm([alike[0]["value"] for alike in tests.values()])
        for alike, p in zip(tests.values(), corrected, strict=True):
            for cell in alike:
                cell["holm"] = float(f"{p:.4g}")


def is_p_value(spec: Row) -> bool:
    """Return whether a column has p-values."""
    return bool(spec["measure"] == "p-value" and spec.get("what", "p") == "p")


def number_format(
    measure: str, digits: int | None = None, scientific: bool = False, x: float | None = None, **of: Any
) -> str:
    """Return the format of a column's numbers; `x` only places them in a figure, and `of` are the measure's options."""
    if scientific:
        return ".1e"
    if is_p_value({"measure": measure, **of}):
        return f".{digits or 2}g"
    default = 0 if of.get("part") else DIGITS.get(measure, 1)
    return f".{default if digits is None else digits}f"


def text_of(table: TableFile, cell: Row) -> str:
    """Return the measured value of a cell as text: `71.6 (70.7-72.4)`."""
    if cell["state"] != MEASURED:
        return str(cell["state"])
    if cell["value"] == "":
        return str(cell["text"])
    spec = table.columns[cell["column"]]
    form = number_format(**spec)
    numbers = [float(cell[name]) for name in ("value", "holm", "low", "high") if cell.get(name, "") != ""]
    value, *rest = (f"{number:{form}}" for number in numbers)
    if cell["holm"] != "":
        return f"{value}; {rest[0]}"
    if not rest or spec.get("scientific") or spec["measure"] in SPREADS:
        return value
    return f"{value} ({rest[0]}{' to ' if numbers[1] < 0 else '-'}{rest[1]})"
