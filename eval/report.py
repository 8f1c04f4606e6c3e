"""Write the results of an evaluation: rows as a table and a CSV file, with their machine and code version."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from tabulate import tabulate

from eval.columns import Row as Row
from eval.columns import measures_of
from eval.tables import cell_text, latex_table, markdown_cell
from performer_string.utils.files import check_writable, read_text, write_aside
from train.measures import Measure
from train.runs.folder import run_of
from train.utils.progress import progress, say_result

if TYPE_CHECKING:
    import torch

ALL_CLASSES = "all classes"  # row of all classes together in `eval confusion`
MAJORITY = "majority baseline"  # accuracy of always answering the most frequent class
ENDINGS = (".csv", ".png", ".pdf", ".svg", ".md", ".tex", ".table.csv", ".curves.csv", ".json", "")  # "" is a folder
BREAKS = {ord(x): x.encode("unicode_escape").decode() for x in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}  # line breaks
FORMER_COLUMNS = {  # columns of CSV files that were written before they were renamed
    "null": MAJORITY,
    "to first": "relative to the first",
    "lowest accuracy": "last accuracy at the worst size",
}


def command_line(arguments: Sequence[str]) -> str:
    """Return the line of a result's header that names its command."""
    return f"command: python -m eval {shlex.join(arguments)}"


def environment(arguments: Sequence[str], device: torch.device) -> list[str]:
    """Return the command, machine, versions and code revision of a result, one line each."""
    from train.runs.environment import code, machine, versions  # these need torch, but reading results does not

    return [command_line(arguments), f"device: {machine(device)}; {versions()}", f"code: {code()}"]


def comment(line: str) -> str:
    """Return a comment line of a CSV file, with line breaks and invalid characters escaped as in `\\n`."""
    return f"# {line.translate(BREAKS)}".encode(errors="backslashreplace").decode()


def write_csv(path: Path, rows: Sequence[Row], header: Sequence[str]) -> None:
    """Write rows as CSV below comment lines; a partial file never has the final name."""
    with (
        write_aside(path) as partial,
        partial.open("w", encoding="utf-8", newline="", errors="backslashreplace") as file,
    ):
        file.writelines(f"{comment(line)}\n" for line in header)
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read a CSV file of an evaluation, with current or former names of columns.

    Returns:
        The comment lines, and the rows with the current names of the columns.

    Raises:
        ValueError: a row with more or fewer cells than columns.
    """
    lines = list(io.StringIO(read_text(path)))  # with line ends, since a quoted cell may contain some
    header = [line.rstrip("\n") for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    rows = list(csv.DictReader(lines[len(header) :]))
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(
                f"row {number} of {path} has other cells than there are columns. A spreadsheet may have saved it with "
                f"decimal commas or with quoted lines of comment: save it with commas between the cells alone."
            )
    return header, [{FORMER_COLUMNS.get(name, name): cell for name, cell in row.items()} for row in rows]


class Report:
    """The files of one evaluation in a folder: NAME.csv, NAME.png, tables, and NAME.partial.csv after an interruption.

    Args:
        folder: folder of the files, created where it is missing.
        name: name of the files, usually the evaluation's.
        header: comment lines of the CSV file; the first is the command.
        has_folder: whether the folder NAME belongs to the report; for a paper's table it holds the runs.

    Raises:
        ValueError: a folder that cannot be written to; raised before hours of measuring.
    """

    def __init__(self, folder: Path, name: str, header: Sequence[str], has_folder: bool = True):
        check_writable("--out", folder)
        self.header = header
        self.endings = ENDINGS if has_folder else ENDINGS[:-1]
        self.csv = folder / f"{name}.csv"
        self.partial = folder / f"{name}.partial.csv"

    def lock(self) -> FileLock:
        """Return the lock of a process that replaces these files and those of the folder NAME, on this machine."""
        key = hashlib.sha256(os.fsencode(self.csv.resolve())).hexdigest()[:16]
        return FileLock(Path(tempfile.gettempdir(), f"performer-string-{key}.lock"), mode=0o666)

    def collect(self, rows: Iterable[Row], line: Callable[[Row], str] = lambda row: "") -> list[Row]:
        """Return all rows; after an interruption or error write the rows measured so far to `partial`.

        Args:
            rows: rows, as they are measured.
            line: function that returns the line of progress of a finished row, or nothing.
        """
        measured: list[Row] = []
        try:
            with progress(only_lines=True):
                for row in rows:
                    measured.append(row)
                    say_result(line(row))
        except BaseException:
            if measured:
                rename_other(self.partial, self.header, self.endings)
                write_csv(self.partial, measured, self.header)
                sys.stderr.write(f"\nnot complete; what was measured is in {self.partial}\n")
            raise
        return measured

    def write(self, rows: Sequence[Row]) -> None:
        """Write the CSV file, and remove the partial file of an interrupted run of the same command."""
        rename_other(self.csv, self.header, self.endings)
        write_csv(self.csv, rows, self.header)
        if is_of_command(self.partial, self.header):
            self.partial.unlink()


def results_of(paths: Sequence[Path]) -> Path:
    """Return the folder for results of runs or checkpoints.

    It is `results`: in the folder of a single run, beside several runs, and beside a checkpoint that belongs to no run.
    """
    first = paths[0]
    run = run_of(first) or first
    if run == first and not first.is_dir():
        return first.parent / "results"
    return (run.parent if len(paths) > 1 else run) / "results"


def is_of_command(path: Path, header: Sequence[str]) -> bool:
    """Return whether a CSV file exists and was written by the command of this header."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:  # a spreadsheet may have saved it in another encoding
        return file.readline().rstrip("\n") == comment(header[0])


def rename_other(path: Path, header: Sequence[str], endings: Sequence[str]) -> None:
    """Rename the files of another command from NAME.csv to NAME.1.csv and so on, and its folder NAME."""
    if not path.is_file() or is_of_command(path, header):
        return
    names = (path.with_name(f"{path.stem}.{n}") for n in itertools.count(1))
    other = next(name for name in names if not (name.exists() or name.with_name(f"{name.name}.csv").exists()))
    for ending in endings:
        old = path.with_name(f"{path.stem}{ending}")
        if old.exists():
            os.replace(old, other.with_name(f"{other.name}{ending}"))


def table(rows: Sequence[Row], intervals: str = "brackets") -> str:
    """Return rows as a Markdown table, also readable on a terminal; `intervals` is as in `write_tables`."""
    cells = [[markdown_cell(cell_text(value), intervals) for value in row.values()] for row in rows]
    number = re.compile(r"([-+]?\d[\d.]*(e[-+]\d+)?|nan|inf)?")
    aligned = ["right" if all(map(number.fullmatch, column)) else "left" for column in zip(*cells, strict=True)]
    # Cells stay as they are: tabulate would read +18.3, a difference, as the number 18.3.
    return tabulate(cells, headers=list(rows[0]), tablefmt="github", disable_numparse=True, colalign=aligned)


def write_tables(
    blocks: Sequence[Sequence[Row]],
    beside: Path,
    kinds: Sequence[str],
    intervals: str = "brackets",
    title: str = "",
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write a table beside a CSV file, and return the paths.

    Args:
        blocks: rows of the table, in blocks that stand one below the other.
        beside: path of the CSV file.
        kinds: any of `markdown` (NAME.md), `latex` (NAME.tex) and `csv` (NAME.table.csv, of one block).
        intervals: format of intervals in LaTeX and Markdown, `brackets` or `pm`.
        title, notes: lines above and below the table in Markdown, where it has a title, and comments in LaTeX.
    """
    paths = []
    for kind in dict.fromkeys(kinds):
        path = beside.with_suffix({"markdown": ".md", "latex": ".tex", "csv": ".table.csv"}[kind])
        paths.append(path)
        if kind == "csv":
            write_csv(path, blocks[0], [])
            continue
        if kind == "latex":
            comments = "".join(f"% {line}\n" for line in ([title, *notes] if title else notes))
            text = comments + "\n".join(latex_table(block, intervals) for block in blocks)
        else:
            parts = [f"**{title}**"] * bool(title) + [table(block, intervals) for block in blocks]
            listed = "\n".join(f"- {note}" for note in notes) if title else ""
            text = "\n\n".join([*parts, listed] if listed else parts) + "\n"
        with write_aside(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return paths


def accuracy_title(rows: Sequence[Row]) -> str:
    """Return the title of the column of names: `accuracy in % (test, 5x3 views)`, or `model (test)` of two measures."""
    measures = measures_of(rows[0])
    title = measures[0].label if len(measures) == 1 else "model"
    words = [*unique((row for row in rows if row.get("split")), "split"), *views_of(rows)]
    return f"{title} ({', '.join(words)})" if words else title


def name_cells(rows: Sequence[Row], measure: Measure, name: str) -> dict[str, str]:
    """Return the first cells of a line: the name of a model, and where rows have several measures, which it is of."""
    of_several = len(measures_of(rows[0])) > 1
    return {accuracy_title(rows): name, **({"measure": measure.label} if of_several else {})}


def views_of(rows: Sequence[Row]) -> list[str]:
    """Return the views of each video for a title, such as `5x3 views`; empty for single views."""
    return [f"{views} views" for views in unique((row for row in rows if row.get("views")), "views")]


def unique(rows: Iterable[Row], column: str) -> list[Any]:
    """Return the distinct values of a column, in the order of the rows."""
    return list(dict.fromkeys(row[column] for row in rows))


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows that have the wanted values, by column."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]
