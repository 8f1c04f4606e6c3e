"""The budgets of the project's tables that were not run, with the reason: amount of training, or missing images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.papers.blocks import label_of
from eval.papers.estimate import Time, duration
from eval.papers.group import Group
from eval.papers.plan import make_plan
from eval.papers.table_spec import TableFile
from train.data.tasks import TASKS


@dataclass(frozen=True)
class NotRun:
    """A table at a budget that was not run.

    Attributes:
        table, budget: names of the table and budget.
        says: description of the budget.
        why: number of training runs, their time where known, and data sets that no finished table uses.
    """

    table: str
    budget: str
    says: str
    why: str

    @property
    def command(self) -> str:
        """The command that runs the budget."""
        return f"python -m eval table {self.table} --budget {self.budget} --data DIR"


def not_run(
    tables: Sequence[TableFile], done: set[tuple[str, str]], times: Mapping[tuple[str, str], Time]
) -> Iterator[NotRun]:
    """Yield the budgets that were not run."""
    plans = {
        (table.name, budget): make_plan(table, budget, None, Path()) for table in tables for budget in table.budgets
    }
    labels = labels_of_sources(tables, plans)
    had = {source for key in done & plans.keys() for source in sources_of(plans[key])}
    for table in tables:
        for name, budget in table.budgets.items():
            key = (table.name, name)
            if key not in done:
                missing = [labels[source] for source in sources_of(plans[key]) if source not in had]
                yield NotRun(*key, budget.says or name, reason(plans[key], times.get(key), missing))


def reason(groups: Sequence[Group], time: Time | None, missing: Sequence[str]) -> str:
    """Return the reason why a budget was not run; `missing` lists the sets that no finished table uses."""
    count = sum(len(group.seeds) for group in groups)
    words = "nothing to train" if not count else "1 training run" if count == 1 else f"{count} training runs"
    if time is not None:
        words += f", {duration(time.seconds * count / time.trainings)}"
    return f"{words}; needs {' and '.join(missing)}, which no table here has" if missing else words


def sources_of(groups: Sequence[Group]) -> list[str]:
    """Return the sources of the training images of groups, without generated tasks."""
    sources = dict.fromkeys(str(g.settings().get("data.source", "arrow")) for g in groups if g.seeds)
    return [source for source in sources if source not in TASKS]


def labels_of_sources(tables: Sequence[TableFile], plans: Mapping[tuple[str, str], Sequence[Group]]) -> dict[str, str]:
    """Return a label for each source of images: the shortest of its labels in tables."""
    labels: dict[str, str] = {}
    for table in tables:
        for budget in table.budgets:
            for group in plans[table.name, budget]:
                for source in sources_of([group]):
                    label = label_of(table, "data", group.data)
                    labels[source] = min(labels.get(source, label), label, key=len)
    return labels
