"""What the CSV file of a table says of it in its first lines, for its figure to be drawn again without its YAML file.

Tables of the project are found by their names. The file of one's own may lie anywhere, or be gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eval.papers.table_file import find_table
from eval.papers.table_spec import DataSpec, RowSpec, TableFile

PREFIX = "table: "


def lines_of(table: TableFile, name: str) -> list[str]:
    """Return the lines of comment that describe a table: one, and none for a table of the project.

    Args:
        table: as read.
        name: that the command line has for it.
    """
    if name == table.name:
        return []
    content = {
        **{"title": table.title, "evaluation": table.evaluation, "figure": table.figure},
        **{"rows": places(table.rows), "data": places(table.data)},
        "columns": {column: {"x": spec["x"]} if "x" in spec else {} for column, spec in table.columns.items()},
    }
    return [f"{PREFIX}{json.dumps(content)}"]


def places(specs: dict[str, RowSpec] | dict[str, DataSpec]) -> dict[str, dict[str, object]]:
    """Return the labels of rows or sets, and their places on an axis."""
    return {name: {"label": spec.label, "x": spec.x} for name, spec in specs.items()}


def described_table(name: str, header: Sequence[str]) -> TableFile:
    """Return the table of a CSV file: that of its YAML file where it is found, else as the first lines have it.

    Args:
        name: of the command line that wrote the CSV file.
        header: its lines of comment.

    Raises:
        FileNotFoundError: neither is there, as for the CSV files of former versions.
        ValueError: there is no such table.
    """
    kept = next((line.removeprefix("# ") for line in header if line.startswith(f"# {PREFIX}")), None)
    if kept is None or Path(name).expanduser().exists():
        return find_table(name)
    content = json.loads(kept.removeprefix(PREFIX))
    content["rows"] = {row: RowSpec(**spec) for row, spec in content["rows"].items()}
    content["data"] = {data: DataSpec(**spec) for data, spec in content["data"].items()}
    return TableFile(path=Path(name), name=Path(name).stem, **content)
