"""The cells of a table as rows of a CSV file, one for each set, row, attention and column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eval.papers.group import Group
from eval.papers.measures import DIGITS, MEASURES, OF_CELLS, OF_CONFIG, SPREADS
from eval.papers.results import Measured, Results
from eval.papers.table_spec import TableFile
from eval.report import Row
from eval.statistics import holm
from train.utils.progress import progress

SHOWN = (*OF_CELLS, "published")  # options of a column that change no value
MEASURED, NOT_RUN, NOT_BUILT, NONE = "measured", "not run", "not built", "none"


def state_of(group: Group, measure: str) -> str:
    """Return `measured`, or why a cell has no value: `none`, `not built`, `not run`."""
    if group.state == "none":
        return NONE
    if group.state.startswith("not built"):
        return NOT_BUILT
    if measure in OF_CONFIG:
        return MEASURED if group.state != "not in this budget" else NOT_RUN
    return MEASURED if group.finished() else NOT_RUN


def all_records(table: TableFile, results: Results) -> Iterator[dict[str, Any]]:
    """Yield a record for each cell, with its published value."""
    bar = progress(results.groups.values(), desc="cells", unit="group")
    for group in bar:
        bar.set_postfix_str(group.model)
        for column, spec in table.columns.items():
            options = {k: v for k, v in spec.items() if k not in SHOWN}
            measure = spec["measure"]
            state = state_of(group, measure)
            cell = MEASURES[measure](results, group, **options) if state == MEASURED else Measured(None)
            yield {
                "data": group.data,
                "stands for": group.stands_for,
                "row": group.row,
                "attention": group.attention,
                "column": column,
                "published": table.published_text(group.stands_for, group.row, column, group.attention),
                "value": "" if cell.value is None else float(f"{cell.value:.8g}"),
                "low": "" if cell.low is None else float(f"{cell.low:.8g}"),
                "high": "" if cell.high is None else float(f"{cell.high:.8g}"),
                "text": cell.text,
                "holm": "",
                "state": state,
                "why": group.state if state != MEASURED and group.state != "planned" else "",
                "seeds": cell.seeds or len(group.finished()),
                "images": cell.images or "",
            }


def correct_tests(table: TableFile, records: Sequence[dict[str, Any]]) -> None:
    """Add p-values with Holm's correction, for the paired and for the unpaired tests of a table.

    Columns that show one test in two forms count once.
    """
    for test in ("paired", "unpaired"):
        columns = {
            name: tuple(sorted((k, str(v)) for k, v in spec.items() if k not in SHOWN))
            for name, spec in table.columns.items()
            if spec["measure"] == "p-value" and spec.get("test", "paired") == test and spec.get("what", "p") == "p"
        }
        cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for record in records:
            if record["column"] in columns and record["value"] != "":
                key = record["data"], record["row"], record["attention"], columns[record["column"]]
                cells.setdefault(key, []).append(record)
        corrected = holm([alike[0]["value"] for alike in cells.values()])
        for alike, p in zip(cells.values(), corrected, strict=True):
            for record in alike:
                record["holm"] = float(f"{p:.4g}")


def cell_of(table: TableFile, record: Row) -> str:
    """Return the measured value of a cell as text: `71.6 (70.7-72.4)`."""
    if record["state"] != MEASURED:
        return {NONE: "", NOT_BUILT: NOT_BUILT}.get(record["state"], NOT_RUN)
    if record["value"] == "":
        return str(record["text"])
    spec = table.columns[record["column"]]
    value = float(record["value"])
    if record["holm"] != "":
        form = ".1e" if spec.get("scientific") else f".{spec.get('digits', 2)}g"
        return f"{value:{form}}; {float(record['holm']):{form}}"
    if spec.get("scientific"):
        return f"{value:.1e}"
    digits = spec.get("digits", 0 if spec.get("part") else DIGITS.get(spec["measure"], 1))
    if record["low"] == "" or (spec["measure"] in SPREADS and not spec.get("spread")):
        return f"{value:.{digits}f}"
    low, high = (float(record[end]) for end in ("low", "high"))
    dash = " to " if low < 0 else "-"
    return f"{value:.{digits}f} ({low:.{digits}f}{dash}{high:.{digits}f})"
