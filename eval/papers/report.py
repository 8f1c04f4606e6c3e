"""Collect all tables in one HTML page: figures, commands, device and versions, and what was not run.

`python -m eval report` reads the files that `eval table` has written. The page is self-contained, without scripts, and
is readable on a phone.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from eval.evaluations import Command
from eval.papers.estimate import duration
from eval.papers.listing import Time, read_times
from eval.papers.read import PAPERS, all_tables
from eval.papers.report_page import page
from eval.papers.table import TableFile
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
    folders = [folder.expanduser() for folder in options.folders]
    newest = {(csv.parent.name, csv.stem): csv for folder in folders for csv in tables_in(folder)}
    times = {(time.table, time.budget): time for folder in folders for time in read_times(folder)}
    tables = list(all_tables())
    place = {table.name: number for number, table in enumerate(tables)}
    shown = sorted(newest, key=lambda key: (place.get(key[0], len(place)), key))
    rows = not_run(tables, newest, times)
    devices = list(dict.fromkeys(time.device for key, time in times.items() if key not in newest))
    with write_aside(out) as partial:
        partial.write_text(page([newest[key] for key in shown], rows, devices), encoding="utf-8")
    left = place.keys() - {name for name, _ in newest}
    print(f"{len(shown)} tables; {len(left)} of the project's are not run.\n\n{out}")


def tables_in(folder: Path) -> list[Path]:
    """Return the tables in a folder: the files NAME/BUDGET.csv with Markdown beside them."""
    files = sorted(folder.glob("*/*.csv"))
    return [csv for csv in files if ".curves" not in csv.name and csv.with_suffix(".md").is_file()]


def not_run(
    tables: Sequence[TableFile], done: Collection[tuple[str, str]], times: Mapping[tuple[str, str], Time]
) -> list[dict[str, str]]:
    """Return the budgets that were not run: what they train, their time where it is known, and their command.

    Args:
        tables: the project's tables.
        done: names of table and budget of those that were run.
        times: times of others, by these names.
    """
    return [
        {
            **{"table": table.name, "budget": name, "what it trains": budget.says or name},
            "time": duration(times[table.name, name].seconds) if (table.name, name) in times else "",
            "command": f"python -m eval table {table.name} --budget {name} --data DIR",
        }
        for table in tables
        for name, budget in table.budgets.items()
        if (table.name, name) not in done
    ]


EVALUATION = Command(__doc__, add_arguments, run_command, OUT, on_cpu=True)
