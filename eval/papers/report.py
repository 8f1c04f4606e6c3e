"""Collect all tables in one HTML page: figures, commands, device and versions, and what was not run and why.

`python -m eval report` reads the files that `eval table` has written. The page is self-contained, without scripts, and
is readable on a phone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from eval.evaluations import Command
from eval.papers.estimate import duration
from eval.papers.group import Group
from eval.papers.listing import Time, read_times
from eval.papers.plan import make_plan
from eval.papers.read import PAPERS, all_tables
from eval.papers.report_page import page
from eval.papers.table import TableFile
from eval.tables import counted
from performer_string.utils.files import check_writable, write_aside
from train.data.tasks import TASKS

OUT = "the page (default: runs/tables/report.html)"
RUNS = Path("runs/tables")

Key = tuple[str, str]  # names of a table and a budget


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
    rows = dict(not_run(tables, set(newest), times))
    devices = list(dict.fromkeys(times[key].device for key in rows if key in times))
    with write_aside(out) as partial:
        partial.write_text(page([newest[key] for key in shown], list(rows.values()), devices), encoding="utf-8")
    left = place.keys() - {name for name, _ in newest}
    print(f"{len(shown)} tables; {len(left)} of the project's are not run.\n\n{out}")


def tables_in(folder: Path) -> list[Path]:
    """Return the tables in a folder: the files NAME/BUDGET.csv with Markdown beside them."""
    files = sorted(folder.glob("*/*.csv"))
    return [csv for csv in files if ".curves" not in csv.name and csv.with_suffix(".md").is_file()]


def not_run(
    tables: Sequence[TableFile], done: set[Key], times: Mapping[Key, Time]
) -> Iterator[tuple[Key, dict[str, str]]]:
    """Yield the budgets that were not run: what they train, and why not.

    The reason is the number of training runs, their time where it is known, and the images that no finished table has.
    """
    plans = {(table.name, name): make_plan(table, name, None, Path()) for table in tables for name in table.budgets}
    labels: dict[str, str] = {}  # of each source of images, the shortest of its labels
    for table in tables:
        for name in table.budgets:
            for group in plans[table.name, name]:
                for source in sources_of([group]):
                    label = table.label("data", group.data)
                    labels[source] = min(labels.get(source, label), label, key=len)
    had = {source for key in done & plans.keys() for source in sources_of(plans[key])}
    for table in tables:
        for name, budget in table.budgets.items():
            key, groups = (table.name, name), plans[table.name, name]
            if key in done:
                continue
            count = sum(len(group.seeds) for group in groups)
            why = counted(count, "training run") if count else "nothing to train"
            if key in times:
                why += f", {duration(times[key].seconds * count / times[key].trainings)}"
            if missing := [labels[source] for source in sources_of(groups) if source not in had]:
                why += f"; needs {' and '.join(missing)}, which no table here has"
            command = f"python -m eval table {table.name} --budget {name} --data DIR"
            yield (
                key,
                {
                    **{"table": table.name, "budget": name, "what it trains": budget.says or name},
                    **{"why not": why, "command": command},
                },
            )


def sources_of(groups: Sequence[Group]) -> list[str]:
    """Return the sources of the training images of groups, without generated tasks."""
    sources = dict.fromkeys(group.source for group in groups if group.seeds)
    return [source for source in sources if source not in TASKS]


EVALUATION = Command(__doc__, add_arguments, run_command, OUT, on_cpu=True)
