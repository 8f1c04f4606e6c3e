"""List the tables, the data they need, and their time on this machine, which is kept for `eval report`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eval.papers.estimate import duration, estimates
from eval.papers.group import LACKING, NOT_BUILT, Group
from eval.papers.plan import make_plan
from eval.papers.read import all_tables, stored_budgets
from eval.papers.table import TableFile
from eval.report import read_csv, write_csv
from eval.report import table as as_text
from performer_string.utils.files import check_writable
from train.runs.environment import code, machine, versions
from train.utils.progress import progress

TIMES = "times.csv"  # name of the file of times
NOTE = (
    "Times are of training steps alone, from a few steps timed now on this machine ({device}), as if it had no other "
    "work, one training after the other"
)
OF_ALL = (
    ", also where `needs` names images that are missing. `comes with` names the budgets whose results are in the "
    "repository. Run one: python -m eval table NAME --budget {budget} [--data DIR]"
)


@dataclass(frozen=True)
class Time:
    """The estimated time of the unfinished training runs of a table at a budget."""

    table: str
    budget: str
    trainings: int  # number of training runs
    seconds: int  # total time, one training after the other
    device: str  # on which steps were timed


def list_tables(budget: str, root: Path | None, out: Path, device: torch.device) -> str:
    """Return the list of all tables at a budget."""
    lines, timed, kept = [], dict[str, float](), []
    where = f"{machine(device)}; {versions()}"
    tables = [table for table in all_tables() if budget in table.budgets]
    if not tables:
        raise ValueError(f"no table has a budget {budget!r}.")
    sys.stderr.write(f"Timing a few steps of {len(tables)} tables, which takes minutes on a busy machine ...\n")
    for table in progress(tables, desc="tables"):
        groups = make_plan(table, budget, root, out / (table.runs or table.name) / budget)
        times = estimates(groups, device, timed)
        planned, left = sum(len(group.seeds) for group in groups), sum(group.left() for group in groups)
        seconds = seconds_left(groups, times)
        if left and knows_all(groups, times):
            kept.append(Time(table.name, budget, left, round(float(f"{seconds:.3g}")), where))
        each = sorted(times.values())
        stored = stored_budgets(table)
        missing = [g.state.partition(":")[0] for g in groups if g.state.startswith((LACKING, NOT_BUILT))]
        lines.append(
            {
                "table": table.name,
                "what it shows": table.shows,
                "budget": table.budgets[budget].says or budget,
                "comes with": ", ".join(stored),
                "training runs": f"{planned - left} of {planned} done" if planned else "none",
                "each": f"{duration(each[0])} to {duration(each[-1])}" if each else "",
                "left": time_left(groups, times),
                "needs": "; ".join(dict.fromkeys(missing)),
            }
        )
    keep_times(out, kept)
    return f"{as_text(lines)}\n\n{NOTE.format(device=device)}{OF_ALL.format(budget=budget)}"


def note_on_stored(table: TableFile) -> list[str]:
    """Return a note with the files of a table whose results are in the repository, where they are."""
    files = [f"experiments/papers/{table.name}/{budget}.md" for budget in stored_budgets(table)]
    return [f"Results of this table that come with the repository: {', '.join(files)}."] if files else []


def seconds_left(groups: Sequence[Group], times: Mapping[str, float]) -> float:
    """Return the time of the unfinished runs of groups in seconds, as far as it is known."""
    return sum(times.get(group.model, 0.0) * group.left() for group in groups)


def knows_all(groups: Sequence[Group], times: Mapping[str, float]) -> bool:
    """Return whether the time of each unfinished run is known."""
    return times.keys() >= {group.model for group in groups if group.left()}


def time_left(groups: Sequence[Group], times: Mapping[str, float]) -> str:
    """Return the time of the unfinished runs of groups as text; `not known` where it is known for none."""
    if not times:
        return "not known" if any(group.left() for group in groups) else ""
    return f"{'' if knows_all(groups, times) else 'over '}{duration(seconds_left(groups, times))}"


def list_runs(table: TableFile, budget: str, groups: Sequence[Group], device: torch.device) -> str:
    """Return the list of training runs of one table at a budget, as text."""
    times = estimates(groups, device)
    lines = [
        {
            "data": group.data,
            "row": group.row,
            "attention": group.attention,
            "state": f"{len(group.finished())} of {len(group.folders)} seeds done" if group.folders else group.state,
            "each": duration(times[group.model]) if group.model in times else "",
        }
        for group in groups
    ]
    head = f"{table.title}\n{table.source}\n{table.budgets[budget].says}\n"
    body = as_text(lines) if lines else "nothing to train"
    come_with = "".join(f" {line}" for line in note_on_stored(table))
    return f"{head}\n{body}\n\n{NOTE.format(device=device)}. Without --list the command runs them.{come_with}"


def keep_times(folder: Path, times: Sequence[Time]) -> None:
    """Add times to those in a folder, replacing older ones, where the folder can be written to."""
    kept = {(time.table, time.budget): time for time in (*read_times(folder), *times)}
    try:
        check_writable("--out", folder)
    except ValueError:  # the list is printed in any case
        return
    if kept:
        command = "python -m eval table --list --budget BUDGET"
        rows = [vars(kept[key]) for key in sorted(kept)]
        write_csv(folder / TIMES, rows, [f"command: {command}", f"code of the last lines: {code()}"])


def read_times(folder: Path) -> list[Time]:
    """Return the times in a folder; none where there is no file."""
    rows = read_csv(folder / TIMES)[1] if (folder / TIMES).is_file() else []
    return [Time(r["table"], r["budget"], int(r["trainings"]), round(float(r["seconds"])), r["device"]) for r in rows]
