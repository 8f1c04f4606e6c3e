"""Fill the tables of experiments/**/README.md from the CSV files beside them.

    python -m experiments.tables            # rewrite all tables (`make tables`)
    python -m experiments.tables --check    # only report which README.md is out of date

A table stands between two markers. The first one describes it in YAML; what follows it, up to the second, is generated:

    <!-- table
    file: resolution.csv
    rows: model
    across: resolution
    value: accuracy
    labels: {"linear, `circulant-string`": recipe, "with `lepe`": {file: lepe/6000-steps.csv, model: "*"}}
    -->
    <!-- end table -->

Fields of a table:
    file     CSV file, relative to the README.md.
    rows     CSV column with one table row for each of its values; a trailing `-seedN` is ignored.
    labels   label of a table row -> value of `rows`, or several conditions {file: ..., column: value}. Default: all.
    across   CSV column with one table column for each of its values; `value` names the CSV column shown in the cells.
    columns  title of a table column -> value of `across`; without `across`, -> CSV column shown in the cells.
    where    conditions {CSV column: value} on all rows. Values may contain the wildcards * and ?.
    many     summary of several CSV rows in a cell: seeds (mean with 95 % interval, or single values that are 10 or more
             apart), list, mean, range, spread (mean and range), max, or difference (signed mean with interval; the
             row of the `reference` shows its accuracy). Default: seeds.
    format   Python's format of a number, .1f by default; or a text such as "{weight:.2f} at {step:.0f}" of one CSV row;
             or both by title of a column, {title: ..., default: ...}.
    scale    factor of the numbers, 100 for shares in per cent.
    heading  title of the first table column.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate

from eval import report
from eval.seeds import mean_over_seeds, without_seed
from eval.statistics import student_interval

ROOT = Path(__file__).parent
BLOCK = re.compile(r"(<!-- table\n(.*?)\n-->\n)(.*?)(<!-- end table -->)", re.DOTALL)
FIELDS = {"file", "rows", "labels", "across", "value", "columns", "where", "many", "format", "scale", "heading"}
APART = 10.0  # distance of seeds in points from which their values are shown one by one

CsvRow = dict[str, str]
Condition = Mapping[str, Any]


def read_csv(path: Path) -> list[CsvRow]:
    """Return the rows of an evaluation's CSV file, with a column `seed` from the names of the runs."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    _, rows = report.read_csv(path)
    for row in rows:
        name = row.get("model", "") if "-seed" in row.get("model", "") else row.get("run", "")
        row.setdefault("seed", name.rpartition("-seed")[2])
    return rows


def number(row: CsvRow, column: str, scale: float) -> float:
    """Return a cell as a number."""
    if column not in row:
        raise ValueError(f"no column {column!r} among {', '.join(row)}.")
    try:
        return scale * float(row[column])
    except ValueError as error:
        raise ValueError(f"{column} is {row[column]!r} where a number is needed, in {row}.") from error


def select(rows: Sequence[CsvRow], conditions: Condition) -> list[CsvRow]:
    """Return the rows whose cells, with or without `-seedN`, match all conditions."""

    def matches(cell: str, pattern: object) -> bool:
        return fnmatchcase(cell, str(pattern)) or fnmatchcase(without_seed(cell), str(pattern))

    return [row for row in rows if all(matches(row.get(column, ""), p) for column, p in conditions.items())]


def show_seeds(rows: Sequence[CsvRow], column: str, scale: float, form: str) -> str:
    """Return the mean over seeds with its interval, or the single values where they are far apart."""
    values = [number(row, column, scale) for row in rows]
    if max(values) - min(values) >= APART:
        return f"{statistics.mean(values):{form}}: {' / '.join(f'{value:{form}}' for value in values)}"
    if "low" not in rows[0]:
        return f"{statistics.mean(values):{form}}"
    bounds = [{bound: number(row, bound, scale) for bound in ("low", "high")} for row in rows]
    entries = [{"model": "", "resolution": 0, "accuracy": v, **b} for v, b in zip(values, bounds, strict=True)]
    (mean,) = mean_over_seeds(entries)
    return f"{mean['accuracy']:{form}} ({mean['low']:{form}}-{mean['high']:{form}})"


def show_difference(rows: Sequence[CsvRow], column: str, form: str) -> str:
    """Return the mean difference to the reference with Student's interval over seeds; for the reference, accuracy."""
    if all(without_seed(row["model"]) == row["reference"] for row in rows):
        return show_seeds(rows, "accuracy", 1.0, form)
    mean, low, high = student_interval([number(row, column, 1.0) for row in rows])
    return f"{mean:+{form}} ({low:+{form}} to {high:+{form}})"


def show(rows: Sequence[CsvRow], column: str, title: str, table: Condition) -> str:
    """Return the text of a cell from the CSV rows that belong to it."""
    form, scale, many = table.get("format", ".1f"), float(table.get("scale", 1)), table.get("many", "seeds")
    if isinstance(form, Mapping):
        form = form.get(title, form["default"])
    if not rows:
        return ""
    if "{" in form:
        if len(rows) > 1:
            raise ValueError(f"{len(rows)} rows for one cell of format {form!r}: add conditions.")
        names = re.findall(r"{([^:}]+)", form)
        return form.format(**{name: number(rows[0], name, scale) for name in names})
    if many == "seeds":
        return show_seeds(rows, column, scale, form)
    if many == "difference":
        return show_difference(rows, column, form)
    values = [number(row, column, scale) for row in rows if row[column] != ""]
    if not values:
        return ""
    mean, low, high = (f"{f(values):{form}}" for f in (statistics.mean, min, max))
    texts = {"mean": mean, "max": high, "list": " / ".join(f"{value:{form}}" for value in values)}
    texts |= {"range": low if low == high else f"{low} to {high}", "spread": f"{mean} ({low}-{high})"}
    return texts[many] if len(values) > 1 else mean


def build(table: Condition, folder: Path) -> str:
    """Return a table in Markdown, with links to its files below."""
    if unknown := table.keys() - FIELDS:
        raise ValueError(f"unknown fields {', '.join(sorted(unknown))}; there are {', '.join(sorted(FIELDS))}.")
    key, across, where = table["rows"], table.get("across", ""), table.get("where", {})
    labels = table.get("labels")
    if labels is None:
        names = [without_seed(row[key]) for row in select(read_csv(folder / table["file"]), where)]
        labels = dict(zip(names, names, strict=True))
    found: dict[str, list[CsvRow]] = {}
    files = dict.fromkeys([table["file"]] if "file" in table else [])  # distinct, in order
    for label, condition in labels.items():
        conditions = dict(condition) if isinstance(condition, Mapping) else {key: condition}
        name = conditions.pop("file", table.get("file", "no file"))
        files[name], file = None, folder / name
        found[label] = select(read_csv(file), {**where, **conditions})
        if not found[label]:
            raise ValueError(f"no row of {file} matches {conditions}.")
    columns = table.get("columns")
    if columns is None:
        unit = " px" if across == "resolution" else ""
        values = sorted({row[across] for rows in found.values() for row in rows}, key=float)
        columns = {f"{value}{unit}": value for value in values}
    lines = []
    for label, rows in found.items():
        cells = [(t, name, select(rows, {across: name}) if across else rows) for t, name in columns.items()]
        lines.append(
            [label, *(show(part, table.get("value", "") if across else str(name), t, table) for t, name, part in cells)]
        )
    headers = [table.get("heading", key), *columns]
    text = tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)
    return f"{text}\n\nData: {', '.join(f'[{name}]({name})' for name in files)}"


def fill(text: str, folder: Path) -> str:
    """Return the text of a README.md with all its tables rebuilt."""
    blocks = len(BLOCK.findall(text))
    if not blocks == text.count("<!-- table") == text.count("<!-- end table"):
        raise ValueError("a table needs both its markers, `<!-- table`, `-->` and `<!-- end table -->`, on own lines.")
    return BLOCK.sub(lambda block: f"{block[1]}{build(yaml.safe_load(block[2]), folder)}\n{block[4]}", text)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the tables of all README.md below a folder; return the number of those out of date or wrong."""
    parser = argparse.ArgumentParser(prog="python -m experiments.tables", description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a table is out of date")
    options = parser.parse_args(arguments)
    wrong = 0
    for page in sorted(root.rglob("README.md")):
        text = page.read_text(encoding="utf-8")
        try:
            new = fill(text, page.parent)
        except (ValueError, KeyError, yaml.YAMLError) as error:
            wrong += 1
            print(f"{page}: {error}", file=sys.stderr)
            continue
        if new != text and options.check:
            wrong += 1
            print(f"{page}: its tables are out of date; write them with: make tables", file=sys.stderr)
        elif new != text:
            page.write_text(new, encoding="utf-8")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
