"""The description of a table in the first lines of its CSV file, to redraw the figure without the YAML file.

Tables of the project are found by their names. The file of a user's table may be anywhere, or no longer exist.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from eval.papers.table_file import find_table
from eval.papers.table_spec import DataSpec, RowSpec, TableFile

PREFIX = "table: "
DRAWN = ("measure", "x")  # options of a column that its figure needs


def image_options(options: argparse.Namespace) -> list[str]:
    """Return the options of a command line that choose other images than those of the budget."""
    split = ["--split", options.split] if options.split != "test" else []
    return split + (["--images", str(options.images)] if options.images is not None else [])


def header_words(options: argparse.Namespace) -> list[str]:
    """Return the arguments that the first lines of a table's CSV file name, without the places of files."""
    return ["table", options.name, "--budget", options.budget, *image_options(options)]


def stem_of(options: argparse.Namespace) -> str:
    """Return the name of a table's files, which names other images than those of the budget.

    It is BUDGET, or for example BUDGET.val or BUDGET.40-images, so that one result does not replace another.
    """
    words = [options.budget] if options.split == "test" else [options.budget, options.split]
    return ".".join([*words, f"{options.images}-images"] if options.images is not None else words)


def lines_of(table: TableFile, name: str) -> list[str]:
    """Return the comment lines that describe a table: one line, or none for a table of the project."""
    if name == table.name:
        return []
    content = {
        **{"title": table.title, "evaluation": table.evaluation, "figure": table.figure},
        **{"rows": places(table.rows), "data": places(table.data)},
        "columns": {name: {key: spec[key] for key in DRAWN if key in spec} for name, spec in table.columns.items()},
    }
    return [f"{PREFIX}{json.dumps(content)}"]


def places(specs: dict[str, RowSpec] | dict[str, DataSpec]) -> dict[str, dict[str, object]]:
    """Return the labels of rows or sets, and their coordinates on an axis."""
    return {name: {"label": spec.label, "x": spec.x} for name, spec in specs.items()}


def described_table(name: str, header: Sequence[str]) -> TableFile:
    """Return the table of a CSV file, from its YAML file where it is found, else from the first lines.

    Args:
        name: name of the table on the command line that wrote the CSV file.
        header: comment lines of the CSV file.

    Raises:
        FileNotFoundError: neither exists, as for CSV files of former versions.
        ValueError: an unknown table.
    """
    kept = next((line.removeprefix("# ") for line in header if line.startswith(f"# {PREFIX}")), None)
    if kept is None or Path(name).expanduser().exists():
        return find_table(name)
    content = json.loads(kept.removeprefix(PREFIX))
    content["rows"] = {row: RowSpec(**spec) for row, spec in content["rows"].items()}
    content["data"] = {data: DataSpec(**spec) for data, spec in content["data"].items()}
    return TableFile(path=Path(name), name=Path(name).stem, **content)
