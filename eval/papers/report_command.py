"""Collect all tables in one HTML page: figures, commands, device and versions, and what was not run and why.

`python -m eval report` reads the files that `eval table` has written. The page is self-contained, without scripts, and
is readable on a phone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from eval.evaluations import Command
from eval.papers.estimate import read_times
from eval.papers.not_run import not_run
from eval.papers.report_page import TableRun, page
from eval.papers.table_file import PAPERS, all_tables
from eval.report import read_csv, unique
from performer_string.utils.files import check_writable, write_aside

OUT = "the page (default: runs/tables/report.html)"
RUNS = Path("runs/tables")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval report`."""
    folders = f"folders with NAME/BUDGET.csv; later ones take precedence (default: {PAPERS.name} of the code, {RUNS})"
    parser.add_argument("folders", nargs="*", type=Path, default=[PAPERS, RUNS], help=folders)


def run_command(options: argparse.Namespace, folder: Path) -> None:
    """Write the page."""
    out = (options.out or RUNS / "report.html").expanduser()
    out = out / "report.html" if out.is_dir() or not out.suffix else out
    check_writable("--out", out.parent)
    parts = [part for folder in options.folders for part in parts_of(folder)]
    newest = {(part.name, part.budget): part for part in parts}
    tables = list(all_tables())
    order = {table.name: number for number, table in enumerate(tables)}
    shown = sorted(newest.values(), key=lambda part: (order.get(part.name, len(order)), part.name, part.budget))
    times = {(time.table, time.budget): time for folder in options.folders for time in read_times(folder.expanduser())}
    rows = list(not_run(tables, set(newest), times))
    devices = unique((vars(times[key]) for row in rows if (key := (row.table, row.budget)) in times), "device")
    with write_aside(out) as partial:
        partial.write_text(page(shown, rows, devices), encoding="utf-8")
    done = {part.name for part in shown}
    print(
        f"{len(shown)} tables; {sum(table.name not in done for table in tables)} of the project's are not run.\n\n{out}"
    )


def parts_of(folder: Path) -> list[TableRun]:
    """Return the tables in a folder: NAME/BUDGET.csv with its Markdown and figure."""
    parts = []
    for csv in sorted(folder.expanduser().glob("*/*.csv")):
        text = csv.with_suffix(".md")
        if ".curves" in csv.name or not text.is_file():
            continue
        header, _ = read_csv(csv)
        facts = [line.removeprefix("# ") for line in header]
        facts = [line for line in facts if line.partition(":")[0] in ("command", "device", "code")]
        figure = csv.with_suffix(".png")
        png = figure.read_bytes() if figure.is_file() else b""
        parts.append(TableRun(csv.parent.name, csv.stem, text.read_text(encoding="utf-8"), facts, png))
    return parts


EVALUATION = Command(__doc__, add_arguments, run_command, OUT, on_cpu=True)
