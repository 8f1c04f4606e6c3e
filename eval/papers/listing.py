"""List the tables, the data they need, and their time on this machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from eval.papers.estimate import Time, duration, estimates, keep_times
from eval.papers.group import LACKING, Group
from eval.papers.plan import make_plan
from eval.papers.table_file import PAPERS, all_tables
from eval.papers.table_spec import TableFile
from eval.report import table as as_text
from train.runs.environment import machine, versions
from train.utils.progress import progress

NOTE = (
    "Times are of training steps alone, from a few steps timed now on this machine ({device}), as if it had no other "
    "work, one training after the other, also where `needs` names images that are missing. `comes with` names the "
    "budgets whose results are in the repository. Run one: python -m eval table NAME --budget {budget} [--data DIR]"
)


def list_tables(budget: str, root: Path | None, out: Path, device: torch.device) -> str:
    """Return the list of all tables at a budget."""
    lines, timed, kept = [], dict[str, float](), []
    where = f"{machine(device)}; {versions()}"
    tables = list(all_tables())
    sys.stderr.write(f"Timing a few steps of {len(tables)} tables, which takes minutes on a busy machine ...\n")
    for table in progress(tables, desc="tables"):
        if budget not in table.budgets:
            continue
        groups = make_plan(table, budget, root, out / (table.runs or table.name) / budget)
        planned = sum(len(group.seeds) for group in groups)
        unfinished = [group for group in groups if group.left()]
        times = estimates(groups, device, timed)
        open_ = sum(group.left() for group in unfinished)
        if unfinished and times.keys() >= {group.model for group in unfinished}:
            kept.append(Time(table.name, budget, open_, round(float(f"{seconds_left(unfinished, times):.3g}")), where))
        each = sorted(times.values())
        lines.append(
            {
                "table": table.name,
                "what it shows": table.shows,
                "budget": table.budgets[budget].says or budget,
                "comes with": ", ".join(stored_budgets(table.name)),
                "training runs": f"{planned - open_} of {planned} done" if planned else "none",
                "each": f"{duration(each[0])} to {duration(each[-1])}" if each else "",
                "left": time_left(unfinished, times),
                "needs": needs(groups),
            }
        )
    if not lines:
        raise ValueError(f"no table has a budget {budget!r}.")
    keep_times(out, kept)
    return f"{as_text(lines)}\n\n{NOTE.format(device=device, budget=budget)}"


def time_left(unfinished: Sequence[Group], times: Mapping[str, float]) -> str:
    """Return the time of the training runs of groups as text; `not known` where it is known for none."""
    if not times:
        return "not known" if unfinished else ""
    total = duration(seconds_left(unfinished, times))
    return total if times.keys() >= {group.model for group in unfinished} else f"over {total}"


def seconds_left(unfinished: Sequence[Group], times: Mapping[str, float]) -> float:
    """Return the time of the training runs of groups in seconds, as far as it is known."""
    return sum(times.get(group.model, 0.0) * group.left() for group in unfinished)


def stored_budgets(name: str) -> list[str]:
    """Return the budgets of a table whose results are part of the repository."""
    return [path.stem for path in sorted((PAPERS / name).glob("*.csv")) if ".curves" not in path.name]


def needs(groups: Sequence[Group]) -> str:
    """Return what is missing for the groups of a budget, as text."""
    reasons = Counter(g.state for g in groups if g.state.startswith((LACKING, "not built")) and not g.folders)
    return "; ".join(dict.fromkeys(reason.partition(":")[0] for reason in reasons))


def list_runs(table: TableFile, budget: str, groups: Sequence[Group], device: torch.device) -> str:
    """Return the list of training runs of one table at a budget, as text."""
    times = estimates(groups, device)
    lines = []
    for group in groups:
        if group.state == "none":
            continue
        done, count = len(group.finished()), len(group.folders)
        lines.append(
            {
                "data": group.data,
                "row": group.row,
                "attention": group.attention,
                "state": f"{done} of {count} seeds done" if count else group.state,
                "each": duration(times[group.model]) if group.model in times else "",
            }
        )
    head = f"{table.title}\n{table.source}\n{table.budgets[budget].says}\n"
    body = as_text(lines) if lines else "nothing to train"
    return f"{head}\n{body}\n\n{NOTE.format(device=device, budget=budget)}"
